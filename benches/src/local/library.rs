//! The libraries behind one trait. Each is called through its public API and reads its real clock.

use std::time::Duration;

use limiter_core::Policy;

use super::workload::{Prepared, Requested, prepare};

/// Returns the maximum and the window of the first limit, for libraries with one.
pub(crate) fn only_limit(policy: &Policy) -> (u32, Duration) {
    let limit = policy.limits()[0];
    (limit.max() as u32, limit.window().as_duration())
}

/// Returns the same rate in whole seconds, for libraries without a finer resolution.
pub(crate) fn in_seconds(policy: &Policy) -> (u64, u64) {
    let (max, window) = only_limit(policy);
    let seconds = window.as_secs().max(1);
    ((f64::from(max) * seconds as f64 / window.as_secs_f64()).round() as u64, seconds)
}

/// A rate limiter, or the floor.
pub(crate) trait Library: Send + Sync + Sized + 'static {
    /// Its name in the tables.
    const NAME: &str;
    /// Whether the library keeps a log, so that the window decides how much it holds.
    const KEEPS_LOG: bool = false;
    /// Whether a used-up quota refills bit by bit, so that a long measurement needs a longer window.
    const REFILLS: bool = false;
    /// Returns a limiter with this policy for every key.
    fn with(policy: &Policy) -> Self;
    /// Acquires `cost` units of a key. Returns whether they were allowed.
    #[allow(clippy::ptr_arg, reason = "governor takes a reference to the very type of the key")]
    fn allows_n(&self, key: &String, cost: u32) -> bool;
    /// Acquires one unit, with the library's call for one unit if it has one.
    #[inline(always)]
    #[allow(clippy::ptr_arg, reason = "governor takes a reference to the very type of the key")]
    fn allows(&self, key: &String) -> bool {
        self.allows_n(key, 1)
    }
    /// Removes idle keys, if the library has a call for that.
    fn sweep(&self) {}
    /// Returns a limiter whose keys have `entries` entries each. They are spread over the past window if `allowed`, and use
    /// up the quota otherwise.
    fn filled(policy: &Policy, keys: &[String], entries: u32, allowed: bool) -> Self {
        let library = Self::with(policy);
        for key in keys {
            if allowed {
                library.append_past(key, entries, only_limit(policy).1);
            } else {
                (0..entries).for_each(|_| _ = library.allows(key));
            }
        }
        library
    }
    /// Appends `entries` units to a key's log, spread over the past `window`. A library without a log takes them at once.
    #[allow(clippy::ptr_arg, reason = "governor takes a reference to the very type of the key")]
    fn append_past(&self, key: &String, entries: u32, _window: Duration) {
        self.allows_n(key, entries);
    }
    /// Returns the number of entries in a key's log.
    fn entries(&self, _key: &str) -> usize {
        0
    }
}

/// A limiter that acquires one unit of a key.
pub(crate) type Allows = Box<dyn Fn(&String) -> bool>;

/// A library as a value.
#[derive(Clone, Copy)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) keeps_log: bool,
    pub(crate) refills: bool,
    /// Fills a limiter for a workload.
    pub(crate) prepare: fn(&Requested) -> Prepared,
    /// Returns a limiter.
    pub(crate) connect: fn(&Policy) -> Allows,
}

impl Contestant {
    pub(crate) const fn of<L: Library>() -> Self {
        let connect = |policy: &Policy| -> Allows {
            let library = L::with(policy);
            Box::new(move |key| library.allows(key))
        };
        Self { name: L::NAME, keeps_log: L::KEEPS_LOG, refills: L::REFILLS, prepare: prepare::<L>, connect }
    }
}
