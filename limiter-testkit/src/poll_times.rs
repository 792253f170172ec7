//! Dropping a future before it is ready.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Polls a future until it is ready, but at most this many times, and drops it. Returns `None` if it was not ready.
pub async fn poll_times<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
