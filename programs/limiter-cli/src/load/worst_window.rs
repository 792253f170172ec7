//! Finds the window that admitted most.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use limiter_core::{Limit, Policy};

/// Results arrive out of order, but at most this late, in microseconds.
const MAX_DELAY: u64 = 10_000_000;

/// The admitted acquires of all keys. Memory is bounded by those within the longest window.
#[derive(Debug)]
pub(super) struct Admissions {
    policy: Policy,
    /// The times of the entries of each key in microseconds, sorted.
    pub(super) times: HashMap<u32, VecDeque<u64>, FixedState>,
    /// The units of the window with the highest usage relative to its limit, and that limit.
    pub(super) worst: (u64, Limit),
}

impl Admissions {
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            policy: policy.clone(),
            times: HashMap::default(),
            worst: (0, policy.limits()[0]),
        }
    }

    pub(super) fn add(&mut self, key: u32, at: u64) {
        let times = self.times.entry(key).or_default();
        let place = times.partition_point(|time| *time <= at);
        times.insert(place, at);
        for &limit in self.policy.limits() {
            // The windows that end with the new entry, or with an entry that arrived before it.
            for (last, end) in times.iter().enumerate().skip(place) {
                let first = times.partition_point(|time| {
                    end.saturating_sub(*time) >= limit.stated_window().as_micros()
                });
                let found = ((last + 1 - first) as u64, limit);
                let share = |(units, limit): (u64, Limit)| units as f64 / limit.max() as f64;
                if share(found) > share(self.worst) {
                    self.worst = found;
                }
            }
        }
        let oldest = at.saturating_sub(
            self.policy
                .longest_window()
                .as_micros()
                .saturating_add(MAX_DELAY),
        );
        while times.front().is_some_and(|time| *time < oldest) {
            times.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limiter_testkit::worst_window;

    use super::*;

    #[test]
    fn the_worst_window_is_the_one_nearest_to_its_limit() {
        // Entries exactly a window apart do not share a window.
        for (policy, entries, expected) in [
            ("9/10us", &[][..], (0, 0)),
            (
                "9/10us",
                &[(7, 20), (7, 0), (7, 9), (7, 10), (7, 19)],
                (2, 0),
            ),
            (
                "9/10us",
                &[(7, 5), (8, 5), (7, 14), (7, 5), (7, 15)],
                (3, 0),
            ),
            (
                "9/10us",
                &[
                    (7, 0),
                    (7, 1),
                    (7, 2),
                    (7, 3),
                    (7, 100_000_000),
                    (7, 100_000_001),
                ],
                (4, 0),
            ),
            (
                "2/10us, 10/1m",
                &[(7, 0), (7, 100), (7, 200), (7, 300), (8, 2), (8, 1)],
                (2, 0),
            ),
            (
                "2/10us, 4/1m",
                &[(7, 0), (7, 100), (7, 200), (8, 2)],
                (3, 1),
            ),
        ] {
            let policy: Policy = policy.parse().unwrap();
            let mut admissions = Admissions::new(&policy);
            entries
                .iter()
                .for_each(|(key, at)| admissions.add(*key, *at));
            assert_eq!(
                admissions.worst,
                (expected.0, policy.limits()[expected.1]),
                "{entries:?}"
            );
            // The same as from all entries of each key.
            let (units, limit) = admissions.worst;
            let of_key = |key: u32| {
                let own = entries.iter().filter(|(other, _)| *other == key);
                let times = own.map(|(_, at)| Duration::from_micros(*at));
                worst_window(
                    times,
                    Duration::from_micros(limit.stated_window().as_micros()),
                )
            };
            assert_eq!(units, of_key(7).max(of_key(8)), "{entries:?}");
            assert!(
                admissions.times.values().all(|times| times.len() < 6),
                "old entries are kept: {admissions:?}"
            );
        }
    }
}
