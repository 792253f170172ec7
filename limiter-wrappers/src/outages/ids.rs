//! Ids of entries that the store does not hold.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use limiter_core::EntryId;

/// Makes ids for entries that no store holds, so that their receipts name nothing.
#[derive(Debug)]
pub(crate) struct Ids {
    process: u64,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new() -> Self {
        Self { process: RandomState::new().hash_one(std::process::id()) | 1 << 63, next: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> EntryId {
        EntryId::from_u128(u128::from(self.process) << 64 | u128::from(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}
