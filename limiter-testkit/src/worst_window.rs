//! The promise from outside: what was admitted in the worst window.

use std::time::Duration;

/// An admitted request, as its client saw it. Times count from any fixed moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// When the request was sent. It was not decided earlier.
    pub sent: Duration,
    /// When the response arrived. The request was not decided later.
    pub returned: Duration,
    /// The cost.
    pub cost: u64,
}

/// An admission of one unit at a known time.
impl From<Duration> for Admission {
    fn from(at: Duration) -> Self {
        Self::from((at, 1))
    }
}

/// An admission of a cost at a known time.
impl From<(Duration, u64)> for Admission {
    fn from((at, cost): (Duration, u64)) -> Self {
        Self {
            sent: at,
            returned: at,
            cost,
        }
    }
}

/// Returns the largest total cost that any window of this length certainly admitted. A limit that is kept admits at most its maximum,
/// in each of its [stated windows](limiter_core::Limit::stated_window).
///
/// A window contains its begin but not its end. An admission counts if it was sent and returned within the window. Admissions may
/// be in any order.
///
/// ```
/// use std::time::Duration;
/// use limiter_testkit::worst_window;
///
/// let seconds = Duration::from_secs;
/// let admitted = [seconds(1), seconds(59), seconds(60), seconds(61)];
/// assert_eq!(worst_window(admitted, seconds(60)), 3);
/// ```
#[must_use]
pub fn worst_window<A: Into<Admission>>(
    admissions: impl IntoIterator<Item = A>,
    window: Duration,
) -> u64 {
    let admissions = admissions.into_iter().map(Into::into);
    // A longer one fits into no window.
    let fits = |admission: &Admission| admission.returned.saturating_sub(admission.sent) < window;
    let mut by_sent: Vec<Admission> = admissions.filter(fits).collect();
    by_sent.sort_by_key(|admission| admission.sent);
    let mut by_returned = by_sent.clone();
    by_returned.sort_by_key(|admission| admission.returned);
    let mut returned = by_returned.iter().peekable();
    let mut within = 0_u64;
    let mut worst = 0;
    // The worst window begins when one of its admissions was sent.
    for begin in &by_sent {
        let ends_within =
            |admission: &&Admission| admission.returned.saturating_sub(begin.sent) < window;
        while let Some(admission) = returned.next_if(ends_within) {
            within = within.saturating_add(admission.cost);
        }
        worst = worst.max(within);
        // The next window begins after this one was sent, or with another one of that time, which then counts less.
        within -= begin.cost;
    }
    worst
}
