//! Items that expire.

use std::collections::{BTreeMap, BTreeSet};

use limiter_core::Timestamp;

/// Items in the order in which they came, each with a number and an expiry.
pub(super) struct Aged<T> {
    items: BTreeMap<u64, (Timestamp, T)>,
    expiries: BTreeSet<(Timestamp, u64)>,
    next: u64,
}

impl<T> Aged<T> {
    pub(super) const fn new() -> Self {
        Self { items: BTreeMap::new(), expiries: BTreeSet::new(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the number that the next item gets. Numbers increase.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn push(&mut self, expires: Timestamp, item: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.items.insert(number, (expires, item));
        self.expiries.insert((expires, number));
        number
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

    pub(super) fn remove_oldest(&mut self) -> Option<(u64, T)> {
        let number = *self.items.first_key_value()?.0;
        Some((number, self.remove(number)?))
    }

    /// Removes one of the items that have expired at `now`.
    pub(super) fn remove_expired(&mut self, now: Timestamp) -> Option<(u64, T)> {
        let (_, number) = *self.expiries.first().filter(|(expires, _)| *expires <= now)?;
        Some((number, self.remove(number)?))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.items.iter().map(|(number, (_, item))| (*number, item))
    }
}
