//! Items that expire.

use std::collections::{BTreeMap, BTreeSet};

use limiter_core::Timestamp;

/// Items by number, each with an expiry.
pub(super) struct Aged<T> {
    items: BTreeMap<u64, (Timestamp, T)>,
    expiries: BTreeSet<(Timestamp, u64)>,
}

impl<T> Aged<T> {
    pub(super) const fn new() -> Self {
        Self { items: BTreeMap::new(), expiries: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn insert(&mut self, number: u64, expires: Timestamp, item: T) {
        self.items.insert(number, (expires, item));
        self.expiries.insert((expires, number));
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.items.get(&number).map(|(_, item)| item)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.items.get_mut(&number).map(|(_, item)| item)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let (expires, item) = self.items.remove(&number)?;
        self.expiries.remove(&(expires, number));
        Some(item)
    }

    /// Returns the lowest number if there are more than `max` items.
    pub(super) fn first_beyond(&self, max: usize) -> Option<u64> {
        self.items.first_key_value().filter(|_| self.len() > max).map(|(number, _)| *number)
    }

    /// Returns the number of an item that has expired at `now`.
    pub(super) fn first_expired(&self, now: Timestamp) -> Option<u64> {
        self.expiries.first().filter(|(expires, _)| *expires <= now).map(|(_, number)| *number)
    }
}
