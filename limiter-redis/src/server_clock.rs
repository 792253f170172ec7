//! An estimate of the server's clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::Timestamp;
use tokio::time::Instant;

/// How long a bound counts, at least.
const PERIOD: Duration = Duration::from_secs(1);

/// Bounds the server's clock by the times in its replies.
///
/// A reply's time is at or after the moment when its request was sent. That bounds from above how far the server's clock is ahead
/// of the process's. The largest bound of the last one to two periods counts, so that it holds for every node of a Cluster.
/// Bounds of different threads may race. A wrong bound costs an operation one more round trip.
#[derive(Debug)]
pub(crate) struct ServerClock {
    start: Instant,
    /// The number of the period of `newest`.
    period: AtomicU64,
    /// The largest bound in that period, in microseconds: the server's time less that since `start`. 0 if there is none.
    newest: AtomicU64,
    /// The largest bound in the period before.
    before: AtomicU64,
}

impl ServerClock {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            start: Instant::now(),
            period: zero(),
            newest: zero(),
            before: zero(),
        }
    }

    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// Learns from the reply to a request that was sent at `sent`.
    pub(crate) fn learn(&self, sent: Instant, server: Timestamp) {
        let since = self.since_start(sent);
        let bound = server.as_micros().saturating_sub(micros(since));
        let period = since.as_secs() / PERIOD.as_secs();
        if self.period.fetch_max(period, Ordering::Relaxed) < period {
            self.before.store(
                self.newest.swap(bound, Ordering::Relaxed),
                Ordering::Relaxed,
            );
        } else {
            self.newest.fetch_max(bound, Ordering::Relaxed);
        }
    }

    /// Returns a time by the server's clock that is not before `at`. `None` before the first reply.
    pub(crate) fn at(&self, at: Instant) -> Option<u64> {
        let bound = self
            .newest
            .load(Ordering::Relaxed)
            .max(self.before.load(Ordering::Relaxed));
        (bound > 0).then(|| bound.saturating_add(micros(self.since_start(at))))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: u64 = 1_700_000_000_000_000;

    fn learn(clock: &ServerClock, sent: u64, server: u64) {
        let time = Timestamp::from_micros(SERVER + server).unwrap();
        clock.learn(clock.start + Duration::from_micros(sent), time);
    }

    fn at(clock: &ServerClock, micros: u64) -> Option<u64> {
        let at = clock.at(clock.start + Duration::from_micros(micros));
        at.map(|at| at - SERVER)
    }

    #[test]
    fn the_largest_bound_of_two_periods_counts() {
        let clock = ServerClock::new();
        assert_eq!(at(&clock, 0), None);
        learn(&clock, 100, 150);
        learn(&clock, 200, 220);
        assert_eq!(at(&clock, 300), Some(350));
        // A reply to an earlier request.
        learn(&clock, 0, 60);
        assert_eq!(at(&clock, 300), Some(360));
        for (sent, expected) in [(1_000_000, 360), (2_000_000, 310), (3_000_000, 310)] {
            learn(&clock, sent, sent + 10);
            assert_eq!(at(&clock, 300), Some(expected));
        }
        // Late replies of an earlier period also raise the bound.
        learn(&clock, 2_000_000, 2_000_500);
        assert_eq!(at(&clock, 0), Some(500));
    }
}
