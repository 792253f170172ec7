//! The entries that carry an id of the caller's.

use std::collections::{HashMap, VecDeque};

use limiter_core::EntryId;

/// What is known of an entry with an id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) number: u64,
    pub(crate) admitted: bool,
}

/// Ids of the entries of one log.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    by_id: HashMap<EntryId, Named, foldhash::fast::RandomState>,
    /// In the order of the entries. A number that `by_id` does not confirm is a removed entry's.
    in_order: VecDeque<(u64, EntryId)>,
}

impl Ids {
    pub(crate) fn get(&self, id: EntryId) -> Option<Named> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn insert(&mut self, id: EntryId, named: Named) {
        self.by_id.insert(id, named);
        self.in_order.push_back((named.number, id));
    }

    pub(crate) fn remove(&mut self, number: u64) {
        let found = self.in_order.binary_search_by_key(&number, |(number, _)| *number);
        if let Some((number, id)) = found.ok().and_then(|i| self.in_order.remove(i)) {
            self.forget(number, id);
        }
    }

    /// Forgets the ids of all entries before the one with this number.
    pub(crate) fn drop_before(&mut self, first: u64) {
        while let Some(&(number, id)) = self.in_order.front().filter(|(number, _)| *number < first) {
            self.in_order.pop_front();
            self.forget(number, id);
        }
    }

    fn forget(&mut self, number: u64, id: EntryId) {
        // The id may name a later entry by now.
        if self.by_id.get(&id).is_some_and(|named| named.number == number) {
            self.by_id.remove(&id);
        }
    }
}
