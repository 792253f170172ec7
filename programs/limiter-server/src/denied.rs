//! The keys that were denied lately, for the page.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lru::LruCache;

use crate::rules::Rule;

/// The number of keys that [`DeniedKeys`] keeps.
pub const KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999);

/// By the address of the rule's counts, which a reload keeps, and the key. Each value holds the counts, so the address stays theirs.
type Memory = LruCache<(usize, Box<[u8]>), DeniedKey>;

/// A bounded memory of the keys that were denied most recently.
#[derive(Debug)]
pub struct DeniedKeys(Mutex<Memory>);

/// A key that was denied.
#[derive(Clone, Debug)]
pub struct DeniedKey {
    /// The rule that denied it.
    pub rule: Arc<Rule>,
    /// The key.
    pub key: Box<[u8]>,
    /// The number of denials since the key entered the memory.
    pub times: u64,
    /// The time of the latest denial.
    pub last: Instant,
}

impl Default for DeniedKeys {
    fn default() -> Self {
        Self(Mutex::new(Memory::new(KEPT)))
    }
}

impl DeniedKeys {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a denial.
    pub fn note(&self, rule: &Arc<Rule>, key: &[u8]) {
        let id = id(rule, key);
        let now = Instant::now();
        let new = || DeniedKey {
            rule: Arc::clone(rule),
            key: key.into(),
            times: 0,
            last: now,
        };
        let mut memory = self.memory();
        let denied = memory.get_or_insert_mut(id, new);
        (denied.times, denied.last) = (denied.times + 1, now);
    }

    /// Forgets a key, for example because its log was reset.
    pub fn forget(&self, rule: &Rule, key: &[u8]) {
        self.memory().pop(&id(rule, key));
    }

    /// Returns at most `count` keys, newest first.
    #[must_use]
    pub fn latest(&self, count: usize) -> Vec<DeniedKey> {
        self.memory()
            .iter()
            .take(count)
            .map(|(_, denied)| denied.clone())
            .collect()
    }
}

fn id(rule: &Rule, key: &[u8]) -> (usize, Box<[u8]>) {
    (Arc::as_ptr(&rule.counts).addr(), key.into())
}
