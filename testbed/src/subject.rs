//! A store under test, and what its callers see.

use std::fmt;
use std::time::Duration;

use limiter_core::{BoxFuture, Decision, Error, ErrorKind, SharedStore};
use tokio::time::{Instant, timeout};

/// A store under test, with what it promises.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name, in tables and messages. No two subjects of a test share it.
    pub name: &'static str,
    /// The store, which reaches the server by the scene's URL.
    pub store: SharedStore,
    /// How long a call may take.
    pub bound: Duration,
    /// How many times the maximum a window may admit, with one fault in it. `None` if there is no bound.
    pub most: Option<u64>,
}

impl Subject {
    /// Returns a store that is exact: no window admits more than its maximum, whatever happens.
    #[must_use]
    pub const fn exact(name: &'static str, store: SharedStore, bound: Duration) -> Self {
        Self { name, store, bound, most: Some(1) }
    }
}

/// What a caller sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// A decision within 35 ms.
    Ok {
        /// Whether it admits.
        allowed: bool,
    },
    /// A decision that took longer than 35 ms.
    Slow {
        /// Whether it admits.
        allowed: bool,
    },
    /// An error.
    Err(ErrorKind),
    /// No decision and no error within the store's bound and another second.
    Never,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok { allowed: true } => f.write_str("Ok"),
            Self::Ok { allowed: false } => f.write_str("Ok, denied"),
            Self::Slow { allowed: true } => f.write_str("Slow"),
            Self::Slow { allowed: false } => f.write_str("Slow, denied"),
            Self::Err(kind) => write!(f, "Err {}", kind.as_str()),
            Self::Never => f.write_str("Never"),
        }
    }
}

const SLOW: Duration = Duration::from_millis(35);
/// How late a busy machine may notice the end of a timeout.
const SLACK: Duration = Duration::from_secs(1);

/// One call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Never `Slow`, which [`usual`] derives from the median.
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// The time of the entry or, without one, of the decision, in microseconds. A repetition is decided later than the entry.
    pub(super) at: Option<u64>,
}

impl Call {
    pub(super) fn allowed(&self) -> bool {
        self.outcome == Outcome::Ok { allowed: true }
    }
}

impl Subject {
    /// Returns the output, or `None` if it takes longer than the bound.
    pub(super) async fn within_bound<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        timeout(self.bound + SLACK, future).await.ok()
    }

    /// Makes a call, unless it takes longer than the bound.
    pub(super) async fn call(&self, call: BoxFuture<'_, Result<Decision, Error>>) -> Call {
        let begun = Instant::now();
        let (outcome, at) = match self.within_bound(call).await {
            Some(Ok(decision)) => {
                let at = decision.receipt().map_or(decision.at(), |receipt| receipt.at());
                (Outcome::Ok { allowed: decision.allowed() }, Some(at.as_micros()))
            }
            Some(Err(error)) => (Outcome::Err(error.kind()), None),
            None => (Outcome::Never, None),
        };
        Call { outcome, took: begun.elapsed(), at }
    }
}

/// Returns the most frequent outcome and the median time of its calls. A single late wake-up of a busy machine changes neither.
pub(super) fn usual(calls: &[Call]) -> Option<(Outcome, Duration)> {
    let alike = |call: &Call| calls.iter().filter(|other| other.outcome == call.outcome).count();
    let usual = calls.iter().max_by_key(|call| alike(call))?.outcome;
    let mut times: Vec<Duration> = calls.iter().filter(|call| call.outcome == usual).map(|call| call.took).collect();
    times.sort_unstable();
    let median = times[times.len() / 2];
    Some(match usual {
        Outcome::Ok { allowed } if median > SLOW => (Outcome::Slow { allowed }, median),
        outcome => (outcome, median),
    })
}
