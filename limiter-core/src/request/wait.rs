//! Waiting: for a store, and until an acquire fits.

use std::time::Duration;
#[cfg(not(feature = "tokio"))]
use std::time::Instant;

#[cfg(feature = "tokio")]
use tokio::time::Instant;

use super::call::Call;
use crate::decision::Decision;
use crate::error::{Error, ErrorKind};
use crate::policy::Counting;
use crate::store::WindowStore;
use crate::store::clock::{BoxFuture, Clock};
use crate::store::op::At;

/// Tries until the acquire fits or cannot fit within `longest`, and sleeps between tries. If each try would count, only looks, and then
/// acquires once. Fails before the first try if it may have to wait and nothing can sleep. Calls `before_try` before each.
pub(super) async fn until_it_fits<S, B>(
    call: &Call<'_, S, B>,
    longest: Duration,
    mut before_try: impl FnMut(),
) -> Result<Decision, Error>
where
    S: WindowStore,
    B: AsRef<[u8]>,
{
    // The store's clock comes first: a mock clock advances independently of other timers.
    let clock = call.limiter.store.clock();
    // A caller-supplied time does not advance while the call waits.
    let may_wait = !longest.is_zero() && call.at == At::StoreClock;
    // Otherwise the mistake would show in production, with the first denial.
    if may_wait && clock.is_none() {
        can_sleep()?;
    }
    // Of another clock, only the sleeps are known.
    let start = clock.is_none().then(Instant::now);
    let op = call.op();
    let looks = may_wait && op.policy.counting() == Counting::Attempts;
    let attempt = if looks { op.to_peek() } else { op };
    before_try();
    let mut decision = call.limiter.decide(attempt).await?;
    let end = decision.at().saturating_add(longest);
    let mut slept = Duration::ZERO;
    while may_wait && let Some(wait) = decision.retry_after() {
        // The decisions' clock stands still while the log's newest entry is ahead of it, so it cannot bound the wait alone.
        let waited = start.map_or(slept, |start| start.elapsed());
        if decision.at().saturating_add(wait) > end || waited.saturating_add(wait) > longest {
            break;
        }
        sleep(clock, wait).await;
        slept = slept.saturating_add(wait);
        before_try();
        decision = call.limiter.decide(attempt).await?;
    }
    if looks {
        before_try();
        decision = call.decide().await?;
    }
    Ok(decision)
}

/// Sleeps by this clock, otherwise on tokio's timers.
fn sleep(clock: Option<&dyn Clock>, duration: Duration) -> BoxFuture<'_, ()> {
    match clock {
        Some(clock) => clock.sleep(duration),
        #[cfg(feature = "tokio")]
        None => Box::pin(tokio::time::sleep(duration)),
        #[cfg(not(feature = "tokio"))]
        None => Box::pin(std::future::ready(())),
    }
}

/// Returns an error unless tokio's timers are there.
fn can_sleep() -> Result<(), Error> {
    #[cfg(feature = "tokio")]
    if tokio::runtime::Handle::try_current().is_ok() {
        return Ok(());
    }
    let text = "waiting needs a timer, found none: enable the feature `tokio` and run in a tokio runtime, or give the store a \
                clock that sleeps, by `WithClock`";
    Err(Error::new(ErrorKind::Configuration, text))
}

/// Awaits a store for at most this long, on tokio's timers. Outside a runtime, it may not wait.
pub async fn within<T>(
    timeout: Option<Duration>,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    #[cfg(feature = "tokio")]
    if let Some(timeout) = timeout {
        use futures_util::FutureExt;
        if tokio::runtime::Handle::try_current().is_err() {
            let text = "an asynchronous store's timeout needs a tokio runtime";
            let error = Error::new(ErrorKind::Configuration, text);
            return call.now_or_never().unwrap_or(Err(error));
        }
        let text = "the store did not respond in time";
        let late = |_| Err(Error::new(ErrorKind::Timeout, text));
        return tokio::time::timeout(timeout, call)
            .await
            .unwrap_or_else(late);
    }
    let _ = timeout;
    call.await
}
