//! The loop that waits until an acquire fits.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use super::call::Call;
use crate::clock::{BoxFuture, Timer};
use crate::decision::Decision;
use crate::error::{Error, ErrorKind};
use crate::op::At;
use crate::store::{NowStore, WindowStore};
use crate::time::Timestamp;

/// The latest time for a retry, by the clock that the decisions use.
struct Deadline(Timestamp);

impl Deadline {
    fn new(first: &Decision, within: Duration) -> Self {
        Self(first.at().saturating_add(within))
    }

    /// Returns how long to wait before the next try. `None` if the call is admitted or a retry cannot succeed in time.
    fn wait(&self, decision: &Decision, at: At) -> Option<Duration> {
        let wait = decision.retry_after()?;
        // A caller-supplied time does not advance while the call waits.
        let can_succeed = at == At::StoreClock && !decision.is_final_denial();
        (can_succeed && decision.at().saturating_add(wait) <= self.0).then_some(wait)
    }
}

/// Tries until the acquire fits or cannot fit in time, and sleeps on a timer between tries.
pub(super) async fn sleeping<S, B>(call: &Call<'_, S, B>) -> Result<Decision, Error>
where
    S: WindowStore,
    B: AsRef<[u8]>,
{
    let mut decision = call.decide().await?;
    let deadline = Deadline::new(&decision, call.within);
    while let Some(wait) = deadline.wait(&decision, call.at) {
        timer(call)?.sleep(wait).await;
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
    S: NowStore,
    B: AsRef<[u8]>,
{
    let mut decision = call.decide_now()?;
    let deadline = Deadline::new(&decision, call.within);
    while let Some(wait) = deadline.wait(&decision, call.at) {
        match call.limiter.store.timer() {
            Some(timer) => block_on(timer.sleep(wait)),
            None => thread::sleep(wait),
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
