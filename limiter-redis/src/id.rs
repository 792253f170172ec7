//! The ids that the store gives to entries.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::format::FINAL_ID;

/// Makes ids of 30 bits. No id repeats before all have been used.
///
/// Each source has a different order. If two stores append to one key and happen to make the same id at the same time, their
/// next ids differ again.
#[derive(Debug)]
pub(crate) struct IdSource {
    next: AtomicU32,
    mask: u32,
}

impl IdSource {
    pub(crate) fn new() -> Self {
        // The keys of `RandomState` come from the operating system.
        let random = RandomState::new().hash_one(std::process::id());
        Self { next: AtomicU32::new(random as u32), mask: (random >> 32) as u32 }
    }

    /// Returns the next id in the low 30 bits, and the ttl code in the 16 highest of 48. Merged entries have the id 0.
    pub(crate) fn next(&self, ttl_code: u16) -> u64 {
        loop {
            let id = mix(mix(self.next.fetch_add(1, Ordering::Relaxed)) ^ self.mask);
            if id != 0 {
                return u64::from(ttl_code) << 32 | u64::from(id);
            }
        }
    }
}

/// Permutes the numbers of 30 bits without a visible order. Each step can be undone, so no two numbers become one.
fn mix(number: u32) -> u32 {
    const BITS: u32 = FINAL_ID - 1;
    let mut number = number & BITS;
    for factor in [0x9e37_79b1, 0x85eb_ca77] {
        number = (number ^ number >> 16).wrapping_mul(factor) & BITS;
    }
    number ^ number >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let (one, two) = (IdSource::new(), IdSource::new());
        let ids = std::collections::BTreeSet::from([one.next(0), one.next(0), two.next(0), two.next(0)]);
        assert_eq!(ids.len(), 4);
        assert!(ids.iter().all(|id| id >> 30 == 0));
        assert_eq!(one.next(7) >> 32, 7);
    }

    #[test]
    fn sources_that_have_met_part_again() {
        let ids = |mask| {
            let source = IdSource { next: AtomicU32::new(1), mask };
            (0..100_000).map(|_| source.next(0)).collect::<Vec<_>>()
        };
        let one = ids(1).into_iter().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(one.len(), 100_000);
        // About two of 10^10 pairs are equal, unless both sources use the same order.
        let met = ids(2).iter().filter(|id| one.contains(id)).count();
        assert!(met < 30, "{met} of {}", one.len());
    }
}
