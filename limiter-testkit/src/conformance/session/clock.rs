//! Checks whether a store's clock is right.

use std::time::{Duration, Instant, SystemTime};

use limiter_core::{Clock, SharedStore, Timestamp, WindowStore as _};

use crate::sentence::Sentence;
use crate::sentence::Sentence::{T2, T3, T4};

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
            system: Timestamp::from_system_saturating(SystemTime::now()),
            instant: Instant::now(),
        }
    }
}

/// The knowledge about a store's clock so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockCheck {
    /// The maximum difference from the system clock. `None` if the store's clock has a different epoch.
    tolerance: Option<Duration>,
    /// The last time that the store stated, and when.
    last: Option<(Timestamp, Moment, Moment)>,
}

impl ClockCheck {
    pub(crate) fn new(tolerance: Option<Duration>) -> Self {
        Self {
            tolerance,
            last: None,
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
        let stated = time.as_micros();
        if let Some(tolerance) = self.tolerance {
            let micros = tolerance.as_micros() as u64;
            let [low, high] = [before, after].map(|moment| moment.system.as_micros());
            if !(low.saturating_sub(micros)..=high + micros).contains(&stated) {
                let text = format!(
                    "the store's clock said {stated} \u{b5}s, while the system's time was between {low} and {high}; {tolerance:?} \
                     apart are allowed. A store with a different epoch needs `Suite::own_epoch`; `Suite::shared` tolerates a minute."
                );
                return Err((vec![if is_clamped { T3 } else { T4 }], text));
            }
        }
        let last = self.last.replace((time, before, after));
        if let (Some(low), Some(high)) = (before.store, after.store) {
            // A clock that follows the system's may step back with it.
            if low <= high && !(low..=high).contains(&time) {
                let [low, high] = [low, high].map(Timestamp::as_micros);
                let text = format!(
                    "the operation happened at {stated} \u{b5}s, while `WindowStore::clock` went from {low} to {high}"
                );
                return Err((vec![T2, T4], text));
            }
            return Ok(());
        }
        let Some((last, sent, returned)) = last else {
            return Ok(());
        };
        // About as much time passed for the store as for this machine.
        let slack = Duration::from_millis(5);
        let least = before.instant.saturating_duration_since(returned.instant);
        let least = least.mul_f64(0.95).saturating_sub(slack);
        let most = after.instant.saturating_duration_since(sent.instant);
        let most = most.mul_f64(1.05) + slack;
        let passed = Duration::from_micros(time.micros_since(last));
        if (least..=most).contains(&passed) {
            return Ok(());
        }
        let last = last.as_micros();
        let text = format!(
            "between two calls the store's clock, from which waits count, went from {last} to {stated} \u{b5}s, by {passed:?}, while \
             at least {least:?} and at most {most:?} passed"
        );
        Err((if is_clamped { vec![T3] } else { vec![T2, T4] }, text))
    }
}
