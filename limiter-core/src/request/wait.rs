//! The loop that waits until an acquire fits.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::call::Call;
use crate::clock::{BoxFuture, Timer};
use crate::decision::Decision;
use crate::error::{Error, ErrorKind};
use crate::op::At;
use crate::store::{SyncStore, WindowStore};
use crate::time::Timestamp;

/// The end of a wait: by the clock that the decisions use, and by how long the call has waited.
///
/// The decisions' clock stands still while the log's newest entry is ahead of it, so it cannot bound the wait alone.
struct Deadline {
    at: Timestamp,
    wait: Duration,
    slept: Duration,
    /// `None` if a clock other than the system's decides how fast time passes.
    start: Option<Instant>,
}

impl Deadline {
    fn new(first: &Decision, wait: Duration, start: Option<Instant>) -> Self {
        Self { at: first.at().saturating_add(wait), wait, slept: Duration::ZERO, start }
    }

    /// Returns how long to sleep before the next try. `None` if the call is admitted or a retry cannot succeed in time.
    fn sleep(&mut self, decision: &Decision, at: At) -> Option<Duration> {
        let sleep = decision.retry_after()?;
        // A caller-supplied time does not advance while the call waits.
        let can_succeed = at == At::StoreClock && !decision.is_final_denial();
        let waited = self.start.map_or(self.slept, |start| start.elapsed());
        let in_time = decision.at().saturating_add(sleep) <= self.at && waited.saturating_add(sleep) <= self.wait;
        self.slept = self.slept.saturating_add(sleep);
        (can_succeed && in_time).then_some(sleep)
    }
}

/// Tries until the acquire fits or cannot fit in time, and sleeps on a timer between tries. Fails before the first try if it may
/// have to wait and there is no timer.
pub(super) async fn sleeping<S, B>(call: &Call<'_, S, B>) -> Result<Decision, Error>
where
    S: WindowStore,
    B: AsRef<[u8]>,
{
    let may_wait = !call.within.is_zero() && call.at == At::StoreClock;
    // Otherwise a missing timer would show in production, with the first denial.
    let timer = if may_wait { Some(timer(call)?) } else { None };
    let start = call.limiter.store.timer().is_none().then(Instant::now);
    let mut decision = call.decide().await?;
    let mut deadline = Deadline::new(&decision, call.within, start);
    while let (Some(timer), Some(sleep)) = (timer, deadline.sleep(&decision, call.at)) {
        timer.sleep(sleep).await;
        decision = call.decide().await?;
    }
    Ok(decision)
}

/// Returns the store's timer, otherwise the limiter's, otherwise tokio's.
///
/// The store's comes first: a mock clock advances independently of other timers.
fn timer<'a, S: WindowStore, B>(call: &'a Call<'_, S, B>) -> Result<&'a dyn Timer, Error> {
    let timer = call.limiter.store.timer().or(call.limiter.own_timer());
    timer.or_else(|| default_timer().map(|timer| timer as &dyn Timer)).ok_or_else(|| {
        let text = "waiting needs a timer, found none: enable the feature `tokio` and run in a tokio runtime, or set a \
                    timer with Limiter::with_timer";
        Error::new(ErrorKind::Configuration, text)
    })
}

fn default_timer() -> Option<&'static dyn Timer> {
    #[cfg(feature = "tokio")]
    if tokio::runtime::Handle::try_current().is_ok() {
        return Some(&crate::clock::TokioTimer);
    }
    None
}

/// Like [`sleeping`], but blocks the thread.
pub(super) fn blocking<S, B>(call: &Call<'_, S, B>) -> Result<Decision, Error>
where
    S: SyncStore,
    B: AsRef<[u8]>,
{
    let start = call.limiter.store.timer().is_none().then(Instant::now);
    let mut decision = call.decide_now()?;
    let mut deadline = Deadline::new(&decision, call.within, start);
    while let Some(sleep) = deadline.sleep(&decision, call.at) {
        match call.limiter.store.timer() {
            Some(timer) => block_on(timer.sleep(sleep)),
            None => thread::sleep(sleep),
        }
        decision = call.decide_now()?;
    }
    Ok(decision)
}

fn block_on(mut future: BoxFuture<'_, ()>) {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        thread::park();
    }
}
