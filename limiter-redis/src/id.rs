//! The ids that the store gives to entries.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::format::FINAL_ID;

/// Makes ids of 30 bits. No id repeats before all have been used.
///
/// Each source counts in steps of a different length. If two stores append to one key and happen to make the same id at the same
/// time, their next ids differ again.
#[derive(Debug)]
pub(crate) struct IdSource {
    next: AtomicU32,
    /// Odd, so that the source makes every id.
    step: u32,
}

impl IdSource {
    pub(crate) fn new() -> Self {
        // The keys of `RandomState` come from the operating system.
        let random = RandomState::new().hash_one(std::process::id());
        Self { next: AtomicU32::new(random as u32), step: (random >> 32) as u32 | 1 }
    }

    /// Returns the next id in the low 30 bits, and the ttl code in the 16 highest of 48. Merged entries have the id 0.
    pub(crate) fn next(&self, ttl_code: u16) -> u64 {
        loop {
            let id = self.next.fetch_add(self.step, Ordering::Relaxed) & (FINAL_ID - 1);
            if id != 0 {
                return u64::from(ttl_code) << 32 | u64::from(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_differ() {
        let (one, two) = (IdSource::new(), IdSource::new());
        let ids = BTreeSet::from([one.next(0), one.next(0), two.next(0), two.next(0)]);
        assert_eq!(ids.len(), 4);
        assert!(ids.iter().all(|id| id >> 30 == 0));
        assert_eq!(one.next(7) >> 32, 7);
    }

    #[test]
    fn sources_that_have_met_part_again() {
        let ids = |step| {
            let source = IdSource { next: AtomicU32::new(1), step };
            (0..100_000).map(|_| source.next(0)).collect::<BTreeSet<_>>()
        };
        let (one, other) = (ids(0x9e37_79b1), ids(0x85eb_ca77));
        assert_eq!((one.len(), other.len()), (100_000, 100_000));
        // About two of 10^10 pairs are equal, unless both sources use the same order.
        let met = one.intersection(&other).count();
        assert!(met < 30, "{met}");
    }
}
