//! Records admissions and finds the window with the most of them.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use limiter_core::{Limit, Policy};

/// An admitted acquire: the key, and the time of its entry, in microseconds.
pub(super) type Admission = (u32, u64);

/// The admitted acquires of all keys.
#[derive(Debug)]
pub(super) struct Admissions {
    limits: Vec<Limit>,
    cost: u64,
    times: HashMap<u32, Vec<u64>, FixedState>,
    kept: usize,
    newest: u64,
    worst: WorstWindow,
}

/// The window with the highest usage, relative to its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorstWindow {
    /// The units that the window admitted.
    pub(super) units: u64,
    /// The limit.
    pub(super) limit: Limit,
}

impl WorstWindow {
    fn share(&self) -> f64 {
        self.units as f64 / self.limit.max() as f64
    }
}

/// The number of admissions kept before old ones are dropped.
const MAX_KEPT: usize = 1 << 23;
/// Responses arrive out of order, but at most this late, in microseconds.
const MAX_DELAY: u64 = 60_000_000;

impl Admissions {
    pub(super) fn new(policy: &Policy, cost: u64) -> Self {
        let limits = policy.limits().to_vec();
        let worst = WorstWindow { units: 0, limit: limits[0] };
        Self { limits, cost, times: HashMap::default(), kept: 0, newest: 0, worst }
    }

    pub(super) fn extend(&mut self, admissions: impl IntoIterator<Item = Admission>) {
        for (key, at) in admissions {
            self.times.entry(key).or_default().push(at);
            self.kept += 1;
            self.newest = self.newest.max(at);
        }
        if self.kept >= MAX_KEPT {
            let longest = self.limits.iter().map(|limit| limit.window().as_micros()).max().unwrap_or_default();
            self.evaluate(self.newest.saturating_sub(longest.saturating_add(MAX_DELAY)));
        }
    }

    /// Returns the worst window of all keys.
    pub(super) fn worst(mut self) -> WorstWindow {
        self.evaluate(u64::MAX);
        self.worst
    }

    /// Finds the worst window, then drops admissions older than `drop_before`.
    fn evaluate(&mut self, drop_before: u64) {
        for times in self.times.values_mut() {
            times.sort_unstable();
            for limit in &self.limits {
                let units = most_within(times, limit.window().as_micros()).saturating_mul(self.cost);
                let candidate = WorstWindow { units, limit: *limit };
                if candidate.share() > self.worst.share() {
                    self.worst = candidate;
                }
            }
            times.drain(..times.partition_point(|at| *at < drop_before));
        }
        self.times.retain(|_, times| !times.is_empty());
        self.kept = self.times.values().map(Vec::len).sum();
    }
}

/// Returns the largest number of these sorted times within any window.
fn most_within(times: &[u64], window: u64) -> u64 {
    let mut first = 0;
    let mut most = 0;
    for (last, at) in times.iter().enumerate() {
        while at - times[first] >= window {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admissions_exactly_a_window_apart_do_not_share_a_window() {
        assert_eq!(most_within(&[], 10), 0);
        assert_eq!(most_within(&[0, 10], 10), 1);
        assert_eq!(most_within(&[0, 9, 10, 19, 20], 10), 2);
        assert_eq!(most_within(&[5, 5, 5, 14, 15], 10), 4);
    }

    #[test]
    fn the_worst_window_is_the_one_nearest_to_its_limit() {
        let policy: Policy = "2/10s, 10/1h".parse().unwrap();
        let mut admissions = Admissions::new(&policy, 1);
        admissions.extend((0..5).map(|i| (7, i * 60_000_000)));
        admissions.extend([(8, 2_000_000), (8, 1_000_000)]);
        let worst = admissions.worst();
        assert_eq!((worst.units, worst.limit), (2, policy.limits()[0]));
        let mut over = Admissions::new(&policy, 3);
        over.extend((0..4).map(|i| (7, i * 60_000_000)));
        let worst = over.worst();
        assert_eq!((worst.units, worst.limit), (3, policy.limits()[0]));
    }

    #[test]
    fn dropping_old_admissions_changes_nothing() {
        let policy: Policy = "3/1s".parse().unwrap();
        let mut admissions = Admissions::new(&policy, 1);
        admissions.extend([(1, 0), (1, 1), (1, 2)]);
        admissions.evaluate(10);
        assert_eq!(admissions.kept, 0);
        admissions.extend([(1, 100_000_000)]);
        assert_eq!(admissions.worst().units, 3);
    }
}
