//! Names of entries that the store makes itself.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts up from a random 64-bit number, so that two stores' ids meet about never.
#[derive(Debug)]
pub(crate) struct IdSource(AtomicU64);

impl IdSource {
    pub(crate) fn new() -> Self {
        // The keys of `RandomState` come from the operating system.
        Self(AtomicU64::new(RandomState::new().hash_one(std::process::id())))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let (one, two) = (IdSource::new(), IdSource::new());
        let ids = std::collections::BTreeSet::from([one.next(), one.next(), two.next(), two.next()]);
        assert_eq!(ids.len(), 4);
    }
}
