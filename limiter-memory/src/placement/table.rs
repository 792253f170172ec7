//! The table: a hash table of logs that finds most keys by reading one cache line.

use std::{iter, mem};

use super::key::{Key, KeyedLog};
use crate::log::ring::Oldest;

/// A place for one key, in one cache line.
#[derive(Default)]
#[repr(align(64))]
struct Bucket(Option<BucketLog>);

/// A log in a bucket. The oldest entry takes the place of a direct slot's lock.
pub(crate) struct BucketLog {
    pub(crate) keyed: KeyedLog,
    pub(crate) oldest: Oldest,
}

/// Buckets with open addressing and linear probing (Knuth, The Art of Computer Programming 6.4, algorithms L and R). A key is in
/// the bucket that its hash names, its home, or in a later one with no vacant bucket in between. About two in three are at home.
///
/// `hash` is the hash of a key, and `rehash` computes the same for keys in the table.
#[derive(Default)]
pub(crate) struct Table {
    /// None, or [`buckets_for`] some number of keys. At least one is vacant.
    buckets: Box<[Bucket]>,
    /// The bits of a hash that name a bucket.
    mask: usize,
    len: usize,
}

const SMALLEST: usize = 8;

/// Returns how many keys this many buckets can hold. Probing takes long if hardly a bucket is vacant.
fn capacity(buckets: usize) -> usize {
    buckets - buckets / 8
}

/// Returns the fewest buckets for this many keys: a power of two or three quarters of one.
fn buckets_for(keys: usize) -> usize {
    let mut buckets = if keys == 0 { 0 } else { SMALLEST };
    while capacity(buckets) < keys {
        buckets = if buckets.is_power_of_two() { buckets + buckets / 2 } else { (buckets + 1).next_power_of_two() };
    }
    buckets
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= capacity(self.buckets.len())
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        let home = hash as usize & self.mask;
        if home < self.buckets.len() { home } else { self.home_by_high_bits(hash) }
    }

    /// Spreads the keys whose low bits name no bucket over all buckets, by the high bits.
    #[cold]
    fn home_by_high_bits(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> u64::BITS) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 < self.buckets.len() { at + 1 } else { 0 }
    }

    /// Returns a key's log. Fastest for a key at home.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, hash: u64, name: u32, key: &[u8]) -> Option<&mut BucketLog> {
        let home = self.home(hash);
        let (before, from_home) = self.buckets.split_at_mut_checked(home)?;
        let (bucket, after) = from_home.split_first_mut()?;
        let log = bucket.0.as_mut()?;
        if log.keyed.key.is(name, key) { Some(log) } else { not_at_home(after, before, name, key) }
    }

    /// Inserts a key that is not in the table. Grows the table if it is full.
    pub(crate) fn insert(&mut self, hash: u64, keyed: KeyedLog, rehash: impl Fn(&Key) -> u64) {
        if self.is_full() {
            let (logs, keys) = (self.take_logs(), self.len + 1);
            self.refill(logs, keys, rehash);
        }
        self.put(hash, keyed);
    }

    fn put(&mut self, hash: u64, mut keyed: KeyedLog) {
        let mut at = self.home(hash);
        while self.buckets[at].0.is_some() {
            at = self.next(at);
        }
        self.buckets[at].0 = Some(BucketLog { oldest: keyed.log.no_oldest(), keyed });
        self.len += 1;
    }

    pub(crate) fn logs(&self) -> impl Iterator<Item = &KeyedLog> {
        self.buckets.iter().filter_map(|bucket| Some(&bucket.0.as_ref()?.keyed))
    }

    /// Takes the logs out. Only [`refill`](Self::refill) may follow.
    pub(crate) fn take_logs(&mut self) -> impl Iterator<Item = KeyedLog> + use<> {
        mem::take(&mut self.buckets).into_iter().filter_map(|bucket| Some(bucket.0?.keyed))
    }

    /// Fills an empty table with these logs. It then has the fewest buckets for this many keys.
    pub(crate) fn refill(&mut self, logs: impl IntoIterator<Item = KeyedLog>, keys: usize, hash: impl Fn(&Key) -> u64) {
        let buckets: Box<_> = iter::repeat_with(Bucket::default).take(buckets_for(keys)).collect();
        *self = Self { mask: buckets.len().next_power_of_two() - 1, buckets, len: 0 };
        for keyed in logs {
            self.put(hash(&keyed.key), keyed);
        }
    }

    pub(crate) fn remove(
        &mut self,
        hash: u64,
        name: u32,
        key: &[u8],
        rehash: impl Fn(&Key) -> u64,
    ) -> Option<KeyedLog> {
        let mut at = self.home(hash);
        while !self.buckets.get(at)?.0.as_ref()?.keyed.key.is(name, key) {
            at = self.next(at);
        }
        let removed = self.take(at);
        // The keys up to the next vacant bucket may have been displaced by this one.
        at = self.next(at);
        while let Some(keyed) = self.take(at) {
            self.put(rehash(&keyed.key), keyed);
            at = self.next(at);
        }
        removed
    }

    fn take(&mut self, at: usize) -> Option<KeyedLog> {
        let taken = self.buckets[at].0.take()?.keyed;
        self.len -= 1;
        Some(taken)
    }
}

/// Probes the buckets after a key's home and then those before it.
#[inline(never)]
fn not_at_home<'a>(
    after: &'a mut [Bucket],
    before: &'a mut [Bucket],
    name: u32,
    key: &[u8],
) -> Option<&'a mut BucketLog> {
    for bucket in after.iter_mut().chain(before) {
        let log = bucket.0.as_mut()?;
        if log.keyed.key.is(name, key) {
            return Some(log);
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

    fn keyed(key: u8) -> KeyedLog {
        KeyedLog { key: Key::new(0, &[key]), log: Log::new(u32::from(key)) }
    }

    fn byte(key: &Key) -> u8 {
        key.parts().1[0]
    }

    /// Collides often, and also puts homes at the end of the buckets.
    fn hash(key: &Key) -> u64 {
        u64::from(byte(key) % 5).wrapping_sub(2)
    }

    fn insert(table: &mut Table, key: u8) {
        let keyed = keyed(key);
        table.insert(hash(&keyed.key), keyed, hash);
    }

    fn get(table: &mut Table, key: u8) -> Option<u8> {
        let (key, hash) = ([key], hash(&keyed(key).key));
        table.get_mut(hash, 0, &key).map(|log| byte(&log.keyed.key))
    }

    proptest! {
        #[test]
        fn holds_what_a_set_holds(changes in prop::collection::vec((0..12_u8, 0..40_u8), 0..200)) {
            let (mut table, mut set) = (Table::default(), HashSet::new());
            for (change, key) in changes {
                match change {
                    0..6 => if set.insert(key) {
                        insert(&mut table, key);
                    },
                    6..11 => {
                        let removed = table.remove(hash(&keyed(key).key), 0, &[key], hash);
                        prop_assert_eq!(removed.is_some(), set.remove(&key));
                    }
                    _ => {
                        let kept = |other: &u8| other % 4 != key % 4;
                        set.retain(kept);
                        let logs = table.take_logs().filter(|keyed| kept(&byte(&keyed.key)));
                        table.refill(logs, set.len(), hash);
                        prop_assert_eq!(table.buckets.len(), buckets_for(set.len()));
                    }
                }
                prop_assert_eq!(table.len(), set.len());
                prop_assert!(table.len() <= capacity(table.buckets.len()));
                for key in 0..40 {
                    prop_assert_eq!(get(&mut table, key), set.get(&key).copied());
                }
            }
            let left: HashSet<u8> = table.logs().map(|keyed| byte(&keyed.key)).collect();
            prop_assert_eq!(left, set);
        }
    }

    #[test]
    fn takes_the_fewest_buckets() {
        let fewest =
            [(0, 0), (1, 8), (7, 8), (8, 12), (11, 12), (12, 16), (168, 192), (169, 256), (224, 256), (225, 384)];
        assert_eq!(fewest.map(|(keys, _)| buckets_for(keys)), fewest.map(|(_, buckets)| buckets));
    }
}
