//! Sleeping without a runtime.

use std::collections::BinaryHeap;
use std::pin::pin;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use limiter_core::WindowStore;

/// The sleepers of this process. One thread wakes them.
struct Sleepers {
    waiting: Mutex<BinaryHeap<Sleeper>>,
    changed: Condvar,
}

struct Sleeper {
    until: Instant,
    wake: oneshot::Sender<()>,
}

impl Ord for Sleeper {
    /// Orders by the earliest deadline: `BinaryHeap` pops the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.until.cmp(&self.until)
    }
}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Sleeper {}

impl Sleepers {
    fn waiting(&self) -> MutexGuard<'_, BinaryHeap<Sleeper>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut waiting = self.waiting();
        loop {
            let now = Instant::now();
            let wait = match waiting.peek() {
                Some(next) if next.until <= now => {
                    if let Some(next) = waiting.pop() {
                        _ = next.wake.send(());
                    }
                    continue;
                }
                Some(next) => next.until - now,
                None => Duration::from_secs(3600),
            };
            let changed = self.changed.wait_timeout(waiting, wait);
            waiting = changed.map_or_else(|poisoned| poisoned.into_inner().0, |(waiting, _)| waiting);
        }
    }
}

fn sleepers() -> &'static Sleepers {
    static SLEEPERS: OnceLock<&Sleepers> = OnceLock::new();
    SLEEPERS.get_or_init(|| {
        let sleepers: &'static Sleepers =
            Box::leak(Box::new(Sleepers { waiting: Mutex::default(), changed: Condvar::new() }));
        std::thread::spawn(|| sleepers.run());
        sleepers
    })
}

/// Sleeps in real time.
pub(crate) async fn sleep(duration: Duration) {
    let (wake, woken) = oneshot::channel();
    let sleepers = sleepers();
    sleepers.waiting().push(Sleeper { until: Instant::now() + duration, wake });
    sleepers.changed.notify_one();
    _ = woken.await;
}

/// Returns the future's output, or `None` after `limit`.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut timeout) = (pin!(future), pin!(sleep(limit)));
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timeout.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Sleeps with the store's timer if it has one, otherwise in real time.
///
/// # Errors
/// If the store's timer does not end the sleep.
pub(crate) async fn sleep_on<S: WindowStore + ?Sized>(store: &S, duration: Duration) -> Result<(), String> {
    let Some(timer) = store.timer() else {
        sleep(duration).await;
        return Ok(());
    };
    let timeout = 10 * duration + Duration::from_secs(10);
    within(timeout, timer.sleep(duration)).await.ok_or_else(|| {
        format!(
            "the store's timer did not end a sleep of {duration:?} within {timeout:?}; a `MockClock` in front of a store must \
             be `auto_advancing`"
        )
    })
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::future::join_all;

    use super::*;

    #[test]
    fn sleepers_wake_on_time_and_not_before() {
        let start = Instant::now();
        let sleeps = [30_u64, 10, 50, 20].map(|millis| async move {
            sleep(Duration::from_millis(millis)).await;
            assert!(start.elapsed() >= Duration::from_millis(millis));
        });
        block_on(join_all(sleeps));
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(block_on(within(Duration::from_millis(10), std::future::pending::<()>())), None);
        assert_eq!(block_on(within(Duration::from_secs(60), async { 7 })), Some(7));
    }
}
