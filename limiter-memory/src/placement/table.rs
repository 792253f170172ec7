//! The table: a hash table of logs that finds most keys by reading one cache line.

use std::{iter, mem};

use super::key::{Key, KeyedLog};
use crate::log::view::Oldest;
use crate::log::{LogParts, Parts};

/// A place for one key, in one cache line.
#[derive(Default)]
#[repr(align(64))]
struct Bucket(Option<BucketLog>);

/// A log in a bucket. The oldest entry takes the place of a direct slot's lock.
pub(crate) struct BucketLog {
    pub(crate) keyed: KeyedLog,
    pub(crate) oldest: Oldest,
}

impl LogParts for BucketLog {
    #[inline(always)]
    fn parts(&mut self) -> Parts<'_> {
        (&mut self.keyed.log, Some(&mut self.oldest))
    }
}

/// Buckets with open addressing and linear probing (Knuth, The Art of Computer Programming 6.4, algorithms L and R). A key is
/// in the bucket that its hash names, its home, or in a later one with no vacant bucket in between. About two in three keys are
/// in their home bucket.
///
/// Homes are in the order of the hashes for any number of buckets, so a table that grows reads and writes memory in order.
///
/// `hash` is the hash of a key, and `rehash` computes the same for keys in the table.
#[derive(Default)]
pub(crate) struct Table {
    /// None, or [`buckets_for`] some number of keys. At least one is vacant.
    buckets: Box<[Bucket]>,
    len: usize,
}

const SMALLEST: usize = 8;

/// The number of buckets copied at a time. Few, because their shard is locked meanwhile.
pub(crate) const PART: usize = 32;

/// Returns how many keys this many buckets can hold. Probing is slow if few buckets are vacant.
fn capacity(buckets: usize) -> usize {
    buckets - buckets / 4
}

/// Returns the fewest buckets for this many keys.
fn buckets_for(keys: usize) -> usize {
    match keys {
        0 => 0,
        _ => (keys + (keys - 1) / 3).max(SMALLEST),
    }
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
        ((hash & u64::from(u32::MAX)).wrapping_mul(self.buckets.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 < self.buckets.len() {
            at + 1
        } else {
            0
        }
    }

    /// Returns a key's log. Fastest for a key at home.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, hash: u64, name: u32, key: &[u8]) -> Option<&mut BucketLog> {
        let home = self.home(hash);
        let (before, from_home) = self.buckets.split_at_mut_checked(home)?;
        let (bucket, after) = from_home.split_first_mut()?;
        let log = bucket.0.as_mut()?;
        if log.keyed.key.is(name, key) {
            Some(log)
        } else {
            not_at_home(after, before, name, key)
        }
    }

    /// Inserts a key that is not in the table. Requires two vacant buckets.
    pub(crate) fn insert(&mut self, hash: u64, mut keyed: KeyedLog) {
        let oldest = keyed.log.no_oldest();
        self.put(hash, BucketLog { keyed, oldest });
    }

    #[inline]
    fn put(&mut self, hash: u64, log: BucketLog) {
        let mut at = self.home(hash);
        while self.buckets[at].0.is_some() {
            at = self.next(at);
        }
        self.buckets[at].0 = Some(log);
        self.len += 1;
    }

    /// Returns all logs and their buckets, beginning at the home of this hash.
    pub(crate) fn logs_from(&self, hash: u64) -> impl Iterator<Item = (usize, &KeyedLog)> {
        let home = self.home(hash);
        let order = (home..self.buckets.len()).chain(0..home);
        order.filter_map(|at| Some((at, &self.buckets[at].0.as_ref()?.keyed)))
    }

    /// Returns copies of the logs whose homes are the next [`PART`] buckets, and the first hash after theirs, of which only the low
    /// half counts. The order of the hashes does not depend on the number of buckets, so a key that stays is in exactly one part,
    /// even if the table grows in between.
    pub(crate) fn part(
        &self,
        from: u64,
        rehash: impl Fn(&Key) -> u64,
    ) -> (Vec<KeyedLog>, Option<u64>) {
        let home = self.home(from);
        let buckets = self.buckets.len();
        let next = home + PART;
        let until = (next < buckets).then(|| ((next as u64) << 32).div_ceil(buckets as u64));
        let hashes = from..until.unwrap_or(1 << 32);
        let order = (home..buckets).chain(0..home).enumerate();
        // The keys up to the next vacant bucket may be displaced.
        let logs = order.map_while(|(i, at)| match &self.buckets[at].0 {
            None if i >= PART => None,
            log => Some(log),
        });
        let logs = logs.flatten().map(|log| &log.keyed);
        let logs =
            logs.filter(|keyed| hashes.contains(&(rehash(&keyed.key) & u64::from(u32::MAX))));
        (logs.cloned().collect(), until)
    }

    /// Keeps the logs for which `keeps` holds, and makes the table the smallest that can hold `keys` keys, at least those kept.
    pub(crate) fn rebuild(
        &mut self,
        keys: usize,
        rehash: impl Fn(&Key) -> u64,
        keeps: impl Fn(&KeyedLog) -> bool,
    ) {
        let buckets: Box<_> = iter::repeat_with(Bucket::default)
            .take(buckets_for(keys))
            .collect();
        for bucket in mem::replace(self, Self { buckets, len: 0 }).buckets {
            if let Some(log) = bucket.0
                && keeps(&log.keyed)
            {
                self.put(rehash(&log.keyed.key), log);
            }
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
        self.remove_at(at, rehash)
    }

    /// Removes the log in this bucket.
    pub(crate) fn remove_at(
        &mut self,
        mut at: usize,
        rehash: impl Fn(&Key) -> u64,
    ) -> Option<KeyedLog> {
        let removed = self.take(at).map(|log| log.keyed);
        // The keys up to the next vacant bucket may have been displaced by this one.
        at = self.next(at);
        while let Some(log) = self.take(at) {
            self.put(rehash(&log.keyed.key), log);
            at = self.next(at);
        }
        removed
    }

    fn take(&mut self, at: usize) -> Option<BucketLog> {
        let taken = self.buckets[at].0.take()?;
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
    use crate::log::LogForm;

    fn keyed(key: u8) -> KeyedLog {
        KeyedLog {
            key: Key::new(0, &[key]),
            log: LogForm::new(u32::from(key)),
        }
    }

    fn byte(key: &Key) -> u8 {
        key.parts().1[0]
    }

    /// Collides often, and also puts homes at the end of the buckets.
    fn hash(key: &Key) -> u64 {
        (u64::from(byte(key) % 5) << 29).wrapping_sub(1)
    }

    proptest! {
        #[test]
        fn holds_what_a_set_holds(changes in prop::collection::vec((0..12_u8, 0..40_u8), 0..200)) {
            let mut table = Table::default();
            let mut set = HashSet::new();
            for (change, key) in changes {
                match change {
                    0..6 => if set.insert(key) {
                        if table.is_full() {
                            table.rebuild(table.len() + 1, hash, |_| true);
                        }
                        table.insert(hash(&keyed(key).key), keyed(key));
                    },
                    6..11 => {
                        let removed = table.remove(hash(&keyed(key).key), 0, &[key], hash).is_some();
                        prop_assert_eq!(removed, set.remove(&key));
                    }
                    _ => {
                        let kept = |other: &u8| other % 4 != key % 4;
                        set.retain(kept);
                        table.rebuild(set.len(), hash, |keyed| kept(&byte(&keyed.key)));
                        prop_assert_eq!(table.buckets.len(), buckets_for(set.len()));
                    }
                }
                prop_assert_eq!(table.len(), set.len());
                prop_assert!(table.len() <= capacity(table.buckets.len()));
                for key in 0..40 {
                    let got = table.get_mut(hash(&keyed(key).key), 0, &[key]).map(|log| byte(&log.keyed.key));
                    prop_assert_eq!(got, set.get(&key).copied());
                }
            }
            let left: HashSet<u8> = table.logs_from(1 << 31).map(|(_, keyed)| byte(&keyed.key)).collect();
            prop_assert_eq!(left, set);
        }
    }

    #[test]
    fn takes_the_fewest_buckets() {
        for keys in 1..5000 {
            let buckets = buckets_for(keys);
            assert!(capacity(buckets) >= keys && buckets > keys, "{keys} keys");
            let is_fewest = buckets == SMALLEST || capacity(buckets - 1) < keys;
            assert!(is_fewest, "{keys} keys");
        }
    }
}
