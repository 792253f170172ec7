//! A store under test, and its callers' results.

use std::fmt;
use std::time::Duration;

use limiter_core::{Decision, Error, ErrorKind, SharedStore};
use tokio::time::{Instant, timeout};

/// A decision that takes longer is slow.
const SLOW: Duration = Duration::from_millis(35);
/// How late a busy machine may notice the end of a timeout.
const SLACK: Duration = Duration::from_secs(1);

/// A store under test, with its promises.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name, in tables and messages. No two subjects of a test share it.
    pub name: &'static str,
    /// The store, which reaches the server with the fault.
    pub store: SharedStore,
    /// How long a call may take.
    pub bound: Duration,
    /// How many times the maximum a window may admit, with any faults in it. `None` if there is no bound.
    pub most: Option<u64>,
}

/// What a caller sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A decision within 35 ms, and whether it admits.
    Ok(bool),
    /// A decision that took longer than 35 ms, and whether it admits.
    Slow(bool),
    /// An error.
    Err(ErrorKind),
    /// No decision and no error within the store's bound and another second.
    Never,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok(true) => f.write_str("Ok"),
            Self::Ok(false) => f.write_str("Ok, denied"),
            Self::Slow(true) => f.write_str("Slow"),
            Self::Slow(false) => f.write_str("Slow, denied"),
            Self::Err(kind) => write!(f, "Err {}", kind.as_str()),
            Self::Never => f.write_str("Never"),
        }
    }
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Never `Slow`, which [`usual`] derives from the median.
    pub(crate) outcome: Seen,
    pub(crate) took: Duration,
}

impl Attempt {
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcome == Seen::Ok(true)
    }

    /// Returns the outcome as the error unless the call was admitted.
    pub(crate) fn admitted(&self) -> Result<(), Seen> {
        self.is_allowed().then_some(()).ok_or(self.outcome)
    }
}

impl Subject {
    /// Makes a call, unless it takes longer than the bound.
    pub(crate) async fn call(
        &self,
        call: impl IntoFuture<Output = Result<Decision, Error>>,
    ) -> Attempt {
        let begun = Instant::now();
        let outcome = match timeout(self.bound + SLACK, call.into_future()).await {
            Ok(Ok(decision)) => Seen::Ok(decision.fits()),
            Ok(Err(error)) => Seen::Err(error.kind()),
            Err(_) => Seen::Never,
        };
        Attempt {
            outcome,
            took: begun.elapsed(),
        }
    }
}

/// Returns the most frequent outcome and the median time of its calls. A single late wake-up of a busy machine changes neither.
pub(crate) fn usual(calls: &[Attempt]) -> Option<(Seen, Duration)> {
    let same = |outcome: Seen| calls.iter().filter(move |call| call.outcome == outcome);
    let usual = calls.iter().max_by_key(|call| same(call.outcome).count())?;
    let usual = usual.outcome;
    let mut times: Vec<Duration> = same(usual).map(|call| call.took).collect();
    times.sort_unstable();
    let median = times[times.len() / 2];
    Some(match usual {
        Seen::Ok(allowed) if median > SLOW => (Seen::Slow(allowed), median),
        outcome => (outcome, median),
    })
}
