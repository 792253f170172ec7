//! Dropping a future before it is ready.

use std::pin::pin;
use std::task::Poll;

/// Polls a future until it is ready, but at most this many times, and drops it. Returns `None` if it was not ready.
pub async fn poll_times<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for left in (0..polls).rev() {
        match futures::poll!(future.as_mut()) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending if left > 0 => futures::pending!(),
            Poll::Pending => {}
        }
    }
    None
}
