//! The loop that waits until an acquire fits.

use std::time::{Duration, Instant};

use super::call::Call;
use crate::clock::Timer;
use crate::decision::Decision;
use crate::error::{Error, ErrorKind};
use crate::op::At;
use crate::store::WindowStore;

/// Tries until the acquire fits or cannot fit in time, and sleeps on a timer between tries. Fails before the first try if it may
/// have to wait and there is no timer.
pub(super) async fn sleeping<S, B>(call: &Call<'_, S, B>) -> Result<Decision, Error>
where
    S: WindowStore,
    B: AsRef<[u8]>,
{
    // A caller-supplied time does not advance while the call waits.
    let may_wait = !call.within.is_zero() && call.at == At::StoreClock;
    // Otherwise a missing timer would show in production, with the first denial.
    let timer = if may_wait { Some(timer(call)?) } else { None };
    // A store with a timer has a clock of its own, of which only the sleeps are known.
    let start = call.limiter.store.timer().is_none().then(Instant::now);
    let mut decision = call.decide().await?;
    let Some(timer) = timer else {
        return Ok(decision);
    };
    let (end, mut slept) = (decision.at().saturating_add(call.within), Duration::ZERO);
    while let Some(sleep) = decision
        .retry_after()
        .filter(|_| !decision.is_final_denial())
    {
        // The decisions' clock stands still while the log's newest entry is ahead of it, so it cannot bound the wait alone.
        let waited = start.map_or(slept, |start| start.elapsed());
        if decision.at().saturating_add(sleep) > end || waited.saturating_add(sleep) > call.within {
            break;
        }
        timer.sleep(sleep).await;
        slept = slept.saturating_add(sleep);
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
