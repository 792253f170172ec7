//! Checks whether a store's clock is right.

use std::time::{Duration, Instant, SystemTime};

use limiter_core::{Clock, SharedStore, Timestamp, WindowStore as _};

use crate::conformance::sentence::Sentence;
use crate::conformance::sentence::Sentence::{T2, T3, T4};

/// When a call was made, by this machine's clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) system: Timestamp,
    /// By the clock that the store says it takes its time from.
    pub(crate) store: Option<Timestamp>,
    instant: Instant,
}

impl Moment {
    pub(crate) fn now(store: &SharedStore) -> Self {
        Self {
            store: store.clock().map(Clock::now),
            system: Timestamp::try_from(SystemTime::now()).unwrap_or_default(),
            instant: Instant::now(),
        }
    }
}

/// The knowledge about a store's clock so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockCheck {
    /// The maximum difference from the system clock. `None` if the store's clock has a different epoch.
    tolerance: Option<Duration>,
    /// Whether the store has a clock in front. If so, its time need not advance like real time.
    own_timer: bool,
    last: Option<Reading>,
    /// How long the store's clock has slept since the last reading.
    pub(crate) slept: Duration,
}

/// A time that the store stated during a call.
#[derive(Clone, Copy, Debug)]
struct Reading {
    time: Timestamp,
    before: Instant,
    after: Instant,
}

impl ClockCheck {
    pub(crate) fn new(tolerance: Option<Duration>, own_timer: bool) -> Self {
        Self {
            tolerance,
            own_timer,
            last: None,
            slept: Duration::ZERO,
        }
    }

    /// Checks the time that the store stated for a call between two moments, on a log with this newest entry.
    ///
    /// # Errors
    /// Returns the broken sentences and a description.
    pub(crate) fn check(
        &mut self,
        time: Timestamp,
        newest: Option<Timestamp>,
        (before, after): (Moment, Moment),
    ) -> Result<(), (Vec<Sentence>, String)> {
        // The newest entry's time clamps the operation, not the clock.
        let is_clamped = newest == Some(time);
        if let Some(tolerance) = self.tolerance {
            let micros = tolerance.as_micros() as u64;
            let low =
                Timestamp::from_micros_saturating(before.system.as_micros().saturating_sub(micros));
            let high = after.system.saturating_add(tolerance);
            if time < low || time > high {
                let text = format!(
                    "the store's clock said {} \u{b5}s, while the system's time was between {} and {}; {tolerance:?} apart are \
                     allowed. A store with a different epoch needs `Suite::own_epoch`; `Suite::shared` tolerates a minute.",
                    time.as_micros(),
                    before.system.as_micros(),
                    after.system.as_micros()
                );
                return Err((vec![if is_clamped { T3 } else { T4 }], text));
            }
        }
        let reading = Reading {
            time,
            before: before.instant,
            after: after.instant,
        };
        let result = self.last.map_or(Ok(()), |last| {
            let text = self.progress(last, reading);
            let citations = if is_clamped { vec![T3] } else { vec![T2, T4] };
            text.map_err(|text| (citations, text))
        });
        (self.last, self.slept) = (Some(reading), Duration::ZERO);
        result
    }

    /// Checks that about as much time passed for the store as for this machine.
    fn progress(&self, last: Reading, now: Reading) -> Result<(), String> {
        let slack = Duration::from_millis(5);
        let (least, most) = if self.own_timer {
            (self.slept, Duration::MAX)
        } else {
            let least = now.before.saturating_duration_since(last.after);
            let most = now.after.saturating_duration_since(last.before);
            (
                least.mul_f64(0.95).saturating_sub(slack),
                most.mul_f64(1.05) + slack,
            )
        };
        let passed = Duration::from_micros(now.time.micros_since(last.time));
        if (least..=most).contains(&passed) {
            return Ok(());
        }
        let text = format!(
            "between two calls the store's clock, from which waits count, went from {} to {} \u{b5}s, by {passed:?}, while at least {least:?} and at most \
             {most:?} passed",
            last.time.as_micros(),
            now.time.as_micros()
        );
        Err(text)
    }
}
