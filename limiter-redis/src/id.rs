//! The ids that the store gives to entries.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::format::FINAL;

/// In a short entry, the bits from this one on are flags.
const IDS_END: u32 = (FINAL << 24) as u32;

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
    /// Without a seed, the keys of `RandomState` come from the operating system.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let random = seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
        Self {
            next: AtomicU32::new(random as u32),
            step: (random >> 32) as u32 | 1,
        }
    }

    /// Returns the next id in the low 30 bits, and the ttl code in the 16 highest of 48. Never 0.
    pub(crate) fn next(&self, ttl_code: u16) -> u64 {
        loop {
            let id = self.next.fetch_add(self.step, Ordering::Relaxed) & (IDS_END - 1);
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
    fn no_id_repeats_and_sources_that_meet_part_again() {
        let ids = |source: IdSource| -> BTreeSet<_> {
            let next = |_| source.next(0);
            (0..100_000).map(next).collect()
        };
        let from_one = |step| {
            let next = AtomicU32::new(1);
            ids(IdSource { next, step })
        };
        let [one, other] = [from_one(0x9e37_79b1), from_one(0x85eb_ca77)];
        // About nine of 10^10 pairs are equal, unless both sources use the same order.
        let met = one.intersection(&other).count();
        assert!((1..30).contains(&met), "{met}");
        let [new, newer] = [ids(IdSource::new(None)), ids(IdSource::new(None))];
        assert_ne!(new, newer);
        for ids in [one, other, new, newer] {
            assert!(ids.len() == 100_000 && ids.iter().all(|id| (1..1 << 30).contains(id)));
        }
    }
}
