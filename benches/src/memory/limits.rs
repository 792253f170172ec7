//! The libraries behind one trait. Each is called through its public API and reads its real clock.

use std::time::{Duration, Instant};

use limiter_core::Policy;

use super::workload::Requests;

/// Returns the maximum and the window of the first limit, for libraries with one.
pub(super) fn only_limit(policy: &Policy) -> (u32, Duration) {
    let limit = policy.limits()[0];
    (limit.max() as u32, limit.window().as_duration())
}

/// Returns the same rate in whole seconds, for libraries without a finer resolution.
pub(super) fn in_seconds(policy: &Policy) -> (u64, u64) {
    let (max, window) = only_limit(policy);
    let seconds = window.as_secs().max(1);
    (
        (f64::from(max) * seconds as f64 / window.as_secs_f64()).round() as u64,
        seconds,
    )
}

/// A rate limiter.
#[allow(
    clippy::ptr_arg,
    reason = "governor takes a reference to the very type of the key"
)]
pub(crate) trait Limits: Send + Sync {
    /// Acquires `cost` units of a key. Returns `true` if they were allowed.
    fn allows_n(&self, key: &String, cost: u32) -> bool;

    /// Acquires one unit, with the library's call for one unit if it has one.
    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        self.allows_n(key, 1)
    }

    /// Appends `entries` units to a key's log, spread over the past `window`. A library without a log takes them in one call.
    fn append_past(&self, key: &String, entries: u32, _window: Duration) {
        self.allows_n(key, entries);
    }

    /// Returns the number of entries in a key's log.
    fn entries(&self, _key: &str) -> usize {
        0
    }

    /// Makes `count` requests, starting with number `from`. Returns the duration and the number of unexpected results. A
    /// provided method, so that each library has its own loop with its calls inlined.
    fn time(&self, requests: &Requests, from: usize, count: usize) -> (Duration, usize) {
        let order = &requests.order[..];
        let denied = requests.workload.denied;
        let key = |i: usize| &order[(from + i) & (order.len() - 1)];
        let start = Instant::now();
        let unexpected = match requests.workload.cost {
            None => (0..count)
                .filter(|&i| self.allows(key(i)) == denied)
                .count(),
            Some(cost) => (0..count)
                .filter(|&i| self.allows_n(key(i), cost) == denied)
                .count(),
        };
        (start.elapsed(), unexpected)
    }
}

impl<F: Fn(&String, u32) -> bool + Send + Sync> Limits for F {
    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        self(key, cost)
    }
}
