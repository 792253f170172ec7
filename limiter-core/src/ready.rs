//! Waiting until an operation fits.

use std::time::Duration;

use crate::{Decision, Error, Limiter, Mode, Op, Timestamp, WindowStore};

/// Sleeps, on whatever runtime the program has. A mock clock is one too, so that waiting can be tested without waiting.
pub trait Timer: Send + Sync {
    /// Returns after `duration`, not earlier.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
}

impl<T: Timer> Timer for &T {
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        (**self).sleep(duration)
    }
}

/// Sleeps on a tokio runtime with its time driver enabled.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTimer;

#[cfg(feature = "tokio")]
impl Timer for TokioTimer {
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }
}

/// How long to wait before the next try; `None` if there is none to make before the deadline.
pub(crate) fn wait_before(decision: &Decision, deadline: Timestamp) -> Option<Duration> {
    let wait = decision.retry_after()?;
    (decision.at().saturating_add(wait) <= deadline).then_some(wait)
}

impl<S: WindowStore> Limiter<S> {
    /// Takes one unit as soon as it fits: acquires, sleeps exactly the retry-after, and tries again, for at most
    /// `max_wait` from the first try on.
    ///
    /// The decision is a denial if the unit would not fit by then; that is known, and returned, without waiting for it.
    /// Several waiters are served in no particular order. Where the policy counts attempts, each try counts.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// A future dropped while it sleeps has consumed nothing (unless the policy counts attempts).
    pub async fn ready<K>(&self, timer: impl Timer, key: &K, max_wait: Duration) -> Result<Decision, Error>
    where
        K: AsRef<[u8]> + ?Sized + Sync,
    {
        self.run_ready(timer, self.op(Mode::Acquire, key, 1), max_wait).await
    }

    /// [`ready`](Self::ready) for an operation with a policy, cost or id of its own. An operation with a given time
    /// is tried once: its time stands still.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`ready`](Self::ready).
    pub async fn run_ready(&self, timer: impl Timer, op: Op<'_>, max_wait: Duration) -> Result<Decision, Error> {
        let mut decision = self.run(op).await?;
        if op.at != crate::At::StoreClock {
            return Ok(decision);
        }
        let deadline = decision.at().saturating_add(max_wait);
        while let Some(wait) = wait_before(&decision, deadline) {
            timer.sleep(wait).await;
            decision = self.run(op).await?;
        }
        Ok(decision)
    }
}
