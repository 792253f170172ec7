//! Names of entries that the store makes itself, and how long the key is kept.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::Window;

/// Counts up from a random number, so that the ids of two stores on one key at one time meet about never.
#[derive(Debug)]
pub(crate) struct IdSource(AtomicU64);

impl IdSource {
    pub(crate) fn new() -> Self {
        // The keys of `RandomState` come from the operating system.
        Self(AtomicU64::new(RandomState::new().hash_one(std::process::id())))
    }

    /// The next id, of 48 bits, behind 16 that say how long the key is kept.
    pub(crate) fn next(&self, keep: u16) -> u64 {
        u64::from(keep) << 48 | self.0.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> 16)
    }
}

/// A window as `entry.lua` reads it, rounded up: `64 k + n` is `n` times 2^`k` microseconds, with `n` from 17 to 32
/// unless the window is shorter.
pub(crate) fn keep(window: Window) -> u16 {
    let (micros, mut k) = (window.as_micros(), 0);
    while micros.div_ceil(1 << k) > 32 {
        k += 1;
    }
    u16::try_from(64 * k + micros.div_ceil(1 << k)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let (one, two) = (IdSource::new(), IdSource::new());
        let ids = std::collections::BTreeSet::from([one.next(0), one.next(0), two.next(0), two.next(0)]);
        assert_eq!(ids.len(), 4);
        assert!(ids.iter().all(|id| id >> 48 == 0));
        assert_eq!(one.next(7) >> 48, 7);
    }

    #[test]
    fn a_key_is_kept_for_its_window_and_an_eighth_more_at_most() {
        let windows = (0..53).flat_map(|k| [(1_u64 << k) - 1, 1 << k, (1 << k) + 1]).chain([Window::MAX.as_micros()]);
        for micros in windows.filter(|micros| *micros > 0) {
            let keep = u64::from(keep(Window::from_micros(micros).unwrap()));
            let (cells, cell) = (keep % 64, 1 << (keep / 64));
            assert!(cells * cell >= micros && cells <= 32, "{micros}");
            // The script rounds the time up to a cell, too.
            let most = (cells + 1) * cell - micros;
            assert!(keep < 64 || 8 * most <= micros, "{micros}: {most} more");
        }
    }
}
