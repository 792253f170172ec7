//! A hash table of logs, in which most keys are found by reading nothing but their slot.

use std::{iter, mem};

use crate::key::Key;
use crate::line::Slot;

/// Where a slot is, or may be, in one cache line.
#[derive(Default)]
#[repr(align(64))]
struct Place(Option<Slot>);

/// Slots with open addressing and linear probing (Knuth, The Art of Computer Programming 6.4, algorithms L and R): a key is
/// in the slot that its hash names, its home, or in a later one with no vacant slot between. About two in three are at home,
/// and more in a small table.
///
/// The caller hashes, and always alike: `hash` is a key's, `rehash` finds those of keys that are there.
#[derive(Default)]
pub(crate) struct Table {
    /// None at all, or as many as [`slots_for`] tells, at least one of which is vacant.
    slots: Box<[Place]>,
    /// Which bits of a hash name a slot; those that name one beyond the last name another.
    mask: usize,
    len: usize,
}

const SMALLEST: usize = 8;
/// In tables of up to so many slots more keys are to be at home. They have a power of two of slots, so that each hash names
/// one at once.
const SMALL: usize = 128;

/// How many keys so many slots are for: searches become long where hardly a slot is vacant.
fn room(slots: usize) -> usize {
    if slots <= SMALL { slots / 4 } else { slots - slots / 8 }
}

/// The fewest slots that are for so many keys: a power of two, or three quarters of one.
fn slots_for(keys: usize) -> usize {
    let mut slots = if keys == 0 { 0 } else { SMALLEST };
    while room(slots) < keys {
        let by_half = slots >= SMALL && slots.is_power_of_two();
        slots = if by_half { slots + slots / 2 } else { (slots + 1).next_power_of_two() };
    }
    slots
}

impl Table {
    fn with_room_for(keys: usize) -> Self {
        let slots: Box<_> = iter::repeat_with(Place::default).take(slots_for(keys)).collect();
        Self { mask: slots.len().next_power_of_two() - 1, slots, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= room(self.slots.len())
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        let home = hash as usize & self.mask;
        if home < self.slots.len() { home } else { self.other_home(hash) }
    }

    /// The home of a key whose hash names no slot: from the other half of the hash, all slots alike.
    #[cold]
    fn other_home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> u64::BITS) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    /// How many slots one has to go on to come from one slot to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.slots.len() - from }
    }

    /// At its fastest for a key at home.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, hash: u64, name: u32, key: &[u8]) -> Option<&mut Slot> {
        let home = self.home(hash);
        let (before, from_home) = self.slots.split_at_mut_checked(home)?;
        let (place, after) = from_home.split_first_mut()?;
        let slot = place.0.as_mut()?;
        if slot.key.is(name, key) { Some(slot) } else { not_at_home(after, before, name, key) }
    }

    fn position(&self, hash: u64, name: u32, key: &[u8]) -> Option<usize> {
        let mut at = self.home(hash);
        while let Some(slot) = &self.slots.get(at)?.0 {
            if slot.key.is(name, key) {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Puts in a key that is not there, and makes room for it if need be.
    pub(crate) fn insert(&mut self, hash: u64, slot: Slot, rehash: impl Fn(&Key) -> u64) {
        self.reserve(1, rehash);
        self.put(hash, slot);
    }

    fn put(&mut self, hash: u64, slot: Slot) {
        let mut at = self.home(hash);
        while self.slots[at].0.is_some() {
            at = self.after(at);
        }
        self.slots[at].0 = Some(slot);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, name: u32, key: &[u8], rehash: impl Fn(&Key) -> u64) -> Option<Slot> {
        let at = self.position(hash, name, key)?;
        self.vacate(at, rehash)
    }

    /// Vacates a slot, and moves into it the next one that would no longer be found behind a vacant slot, and so on.
    fn vacate(&mut self, mut vacant: usize, rehash: impl Fn(&Key) -> u64) -> Option<Slot> {
        let taken = self.slots[vacant].0.take()?;
        self.len -= 1;
        let mut at = vacant;
        loop {
            at = self.after(at);
            let Some(slot) = &self.slots[at].0 else { return Some(taken) };
            if self.distance(self.home(rehash(&slot.key)), at) >= self.distance(vacant, at) {
                self.slots.swap(vacant, at);
                vacant = at;
            }
        }
    }

    /// Removes the slots that `keeps` does not hold for.
    pub(crate) fn retain(&mut self, rehash: impl Fn(&Key) -> u64, keeps: impl Fn(&Slot) -> bool) {
        let Some(vacant) = self.slots.iter().position(|place| place.0.is_none()) else { return };
        // Backwards: what moves up has been seen, and there is less of it.
        for at in (0..vacant).rev().chain((vacant..self.slots.len()).rev()) {
            if self.slots[at].0.as_ref().is_some_and(|slot| !keeps(slot)) {
                self.vacate(at, &rehash);
            }
        }
    }

    /// Makes room for so many more keys.
    pub(crate) fn reserve(&mut self, more: usize, rehash: impl Fn(&Key) -> u64) {
        if self.len + more > room(self.slots.len()) {
            self.resize(self.len + more, rehash);
        }
    }

    /// Returns memory that would not be needed for twice as many keys.
    pub(crate) fn shrink(&mut self, rehash: impl Fn(&Key) -> u64) {
        if slots_for(2 * self.len) < self.slots.len() {
            self.resize(2 * self.len, rehash);
        }
    }

    /// All keys and their logs.
    pub(crate) fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.slots.into_iter().filter_map(|place| place.0)
    }

    /// Takes the fewest slots that are for so many keys.
    fn resize(&mut self, keys: usize, rehash: impl Fn(&Key) -> u64) {
        for slot in mem::replace(self, Self::with_room_for(keys)).into_slots() {
            self.put(rehash(&slot.key), slot);
        }
    }
}

/// Looks in the slots after a key's home and then in those before it.
#[inline(never)]
fn not_at_home<'a>(after: &'a mut [Place], before: &'a mut [Place], name: u32, key: &[u8]) -> Option<&'a mut Slot> {
    for place in after.iter_mut().chain(before) {
        let slot = place.0.as_mut()?;
        if slot.key.is(name, key) {
            return Some(slot);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::log::Log;

    fn slot(key: u8) -> Slot {
        Slot { key: Key::new(0, &[key]), log: Log::new(u32::from(key)) }
    }

    fn byte(key: &Key) -> u8 {
        key.parts().1[0]
    }

    /// So bad that keys crowd, and their homes are at the end of the slots, too.
    fn hash(key: &Key) -> u64 {
        u64::from(byte(key) % 5).wrapping_sub(2)
    }

    fn insert(table: &mut Table, key: u8) {
        let slot = slot(key);
        table.insert(hash(&slot.key), slot, hash);
    }

    fn get(table: &mut Table, key: u8) -> Option<u8> {
        let (key, hash) = ([key], hash(&slot(key).key));
        table.get_mut(hash, 0, &key).map(|slot| byte(&slot.key))
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u8),
        Remove(u8),
        /// Keeps those that are not multiples.
        Retain(u8),
        Shrink,
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            6 => (0..40_u8).prop_map(Change::Insert),
            4 => (0..40_u8).prop_map(Change::Remove),
            1 => (1..4_u8).prop_map(Change::Retain),
            1 => Just(Change::Shrink),
        ];
        prop::collection::vec(change, 0..200)
    }

    proptest! {
        #[test]
        fn holds_what_a_set_holds(changes in changes()) {
            let (mut table, mut set) = (Table::default(), HashSet::new());
            for change in changes {
                match change {
                    Change::Insert(key) => if set.insert(key) {
                        insert(&mut table, key);
                    },
                    Change::Remove(key) => {
                        let removed = table.remove(hash(&slot(key).key), 0, &[key], hash);
                        prop_assert_eq!(removed.is_some(), set.remove(&key));
                    }
                    Change::Retain(factor) => {
                        table.retain(hash, |slot| !byte(&slot.key).is_multiple_of(factor));
                        set.retain(|key| key % factor != 0);
                    }
                    Change::Shrink => table.shrink(hash),
                }
                prop_assert_eq!(table.len(), set.len());
                prop_assert!(table.len() <= room(table.slots.len()));
                for key in 0..40 {
                    prop_assert_eq!(get(&mut table, key), set.get(&key).copied());
                }
            }
            let left: HashSet<u8> = table.into_slots().map(|slot| byte(&slot.key)).collect();
            prop_assert_eq!(left, set);
        }
    }

    #[test]
    fn shrinking_is_no_work_twice_and_leaves_room() {
        for keys in 0..60 {
            let mut table = Table::default();
            for key in 0..keys {
                insert(&mut table, key);
            }
            table.reserve(200, hash);
            table.shrink(hash);
            assert!(keys == 0 || !table.is_full(), "{keys} keys in {} slots", table.slots.len());
            let slots = table.slots.as_ptr();
            table.shrink(hash);
            assert_eq!(table.slots.as_ptr(), slots, "{keys} keys are moved again");
        }
    }

    #[test]
    fn takes_the_fewest_slots() {
        let mut table = Table::default();
        for (keys, slots) in
            [(0, 0), (1, 8), (2, 8), (3, 16), (32, 128), (33, 192), (168, 192), (169, 256), (224, 256), (225, 384)]
        {
            while table.len() < keys {
                let key = table.len() as u8;
                insert(&mut table, key);
            }
            assert_eq!(table.slots.len(), slots, "for {keys} keys");
        }
        table.retain(hash, |slot| byte(&slot.key) == 7);
        table.shrink(hash);
        assert_eq!((table.slots.len(), get(&mut table, 7)), (8, Some(7)));
        table.retain(hash, |_| false);
        table.shrink(hash);
        assert_eq!((table.slots.len(), get(&mut table, 7)), (0, None));
    }
}
