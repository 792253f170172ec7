//! Sleeping, and polling for a limited time, without a runtime.

use std::fmt;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_timer::Delay;
use limiter_core::{SharedStore, WindowStore as _};

use crate::poll_times::poll_times;

/// Sleeps in real time.
pub(crate) async fn sleep(duration: Duration) {
    Delay::new(duration).await;
}

/// Returns the future's output, or `None` after `limit`.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut timeout) = (pin!(future), None);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => pin!(timeout.get_or_insert_with(|| Delay::new(limit)))
            .poll(context)
            .map(|()| None),
    })
    .await
}

/// Sleeps by the store's clock if it has one of its own, otherwise in real time.
///
/// # Errors
/// If the store's clock does not end the sleep.
pub(crate) async fn sleep_on(store: &SharedStore, duration: Duration) -> Result<(), String> {
    let Some(clock) = store.clock() else {
        sleep(duration).await;
        return Ok(());
    };
    let timeout = 10 * duration + Duration::from_secs(10);
    within(timeout, clock.sleep(duration)).await.ok_or_else(|| {
        format!(
            "the store's clock did not end a sleep of {duration:?} within {timeout:?}; a `MockClock` in front of a store must \
             be `auto_advancing`"
        )
    })
}

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DropAfter {
    Polls(usize),
    Micros(u64),
}

impl fmt::Display for DropAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Polls(1) => f.write_str("1 poll"),
            Self::Polls(polls) => write!(f, "{polls} polls"),
            Self::Micros(micros) => write!(f, "{micros} \u{b5}s"),
        }
    }
}

impl DropAfter {
    /// Polls a future for this long. Returns `None` if it has not finished.
    pub(crate) async fn poll<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Micros(micros) => within(Duration::from_micros(micros), future).await,
            Self::Polls(polls) => poll_times(polls, future).await,
        }
    }
}
