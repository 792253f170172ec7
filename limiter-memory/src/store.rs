//! The store: shards of logs.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::{DashMap, SharedValue};
use limiter_core::{At, Decision, Error, Facts, NowStore, Op, Settlement, Timestamp, WindowStore, decide};

use crate::clock;
use crate::key::Key;
use crate::log::Log;
use crate::sweep::{has_expired, make_room, sweep};

/// What a shard of a `DashMap` is.
pub(crate) type Table = hashbrown::raw::RawTable<(Key, SharedValue<Log>)>;

/// Hashes seeded per store: a stranger who picks the keys cannot pick collisions.
type Seed = foldhash::fast::RandomState;

/// The first numbers of two logs are this far apart, so that a key that is forgotten and comes back issues no entry
/// number again.
const NUMBERS_PER_LOG: u64 = 1 << 16;
const NUMBERS: u64 = 1 << 48;

/// An exact sliding-window log per key, in this process.
///
/// Every operation is one lookup and one lock of the key's shard, for no longer than the operation; nothing is held
/// across an await. Share it behind an [`Arc`](std::sync::Arc).
///
/// # Memory
/// A key with up to three entries of cost 1 takes 49 bytes of table (a table is between 7/16 and 7/8 full) and nothing
/// else while it is at most 22 bytes long. More entries take 4 bytes each (8 if the windows are over half an hour), or
/// 24 once an entry of another cost or a refund is among them, in a buffer of at most twice their number.
///
/// Keys whose entries have all expired are forgotten when their shard is full, before it grows, and by
/// [`sweep`](Self::sweep). [`with_max_keys`](Self::with_max_keys) bounds their number.
///
/// # Performance
/// O(1) on average, whatever the limit, the costs and the number of windows; each window adds a few nanoseconds. A
/// settlement or refund takes time in proportion to the entries that are newer than the one it changes.
pub struct MemoryStore {
    logs: DashMap<Key, Log, Seed>,
    max_keys_per_shard: usize,
    next_number: AtomicU64,
}

impl MemoryStore {
    /// An empty store for any number of keys.
    #[must_use]
    pub fn new() -> Self {
        Self::build(usize::MAX)
    }

    /// An empty store that never holds more than `max_keys` keys, at least 1.
    ///
    /// When a fresh key finds its shard full, the shard forgets its expired keys, and if those are too few, the keys
    /// with the fewest entries, of equals the ones longest unused: a flood of fresh keys pushes out itself, and a
    /// client that is over its limit cannot be freed by one. A key pushed out starts anew with an empty log.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::build(max_keys.max(1))
    }

    fn build(max_keys: usize) -> Self {
        // A shard with room for a hundred keys or so evens out how the hash spreads them.
        let wanted = default_shards().min(max_keys / 128 + 1);
        let shards = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        Self {
            logs: DashMap::with_capacity_and_hasher_and_shard_amount(0, Seed::default(), shards.max(2)),
            max_keys_per_shard: (max_keys / shards.max(2)).max(1),
            next_number: AtomicU64::new(0),
        }
    }

    /// How many keys the store holds, expired ones that it has not swept included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// Whether the store holds no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// How many entries the store holds for a key, expired ones that it has not dropped included.
    #[must_use]
    pub fn entries(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> usize {
        let key = key.as_ref();
        let hash = self.hash(key);
        let table = self.logs.shards()[self.shard(hash)].read();
        table.get(hash, |(k, _)| k.is(key)).map_or(0, |(_, log)| log.get().len())
    }

    /// Forgets all keys whose entries have expired by the store's own clock, a shard at a time, and returns the memory
    /// they took. Returns how many there were. A key last appended to at a given time stays: see
    /// [`sweep_at`](Self::sweep_at).
    pub fn sweep(&self) -> usize {
        let now = clock::now();
        self.sweep_where(|log| has_expired(log, now))
    }

    /// Forgets all keys whose entries have expired at `given`, also those appended to at given times.
    pub fn sweep_at(&self, given: Timestamp) -> usize {
        self.sweep_where(|log| log.newest().is_none_or(|newest| log.keep().is_over_at(newest, given)))
    }

    fn sweep_where(&self, is_over: impl Fn(&Log) -> bool) -> usize {
        let hash = |key: &Key| self.hash(key.as_bytes());
        self.logs.shards().iter().map(|shard| sweep(&mut shard.write(), hash, &is_over)).sum()
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.logs.hasher().build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    #[inline]
    fn shard(&self, hash: u64) -> usize {
        self.logs.determine_shard(hash as usize)
    }

    /// Applies an operation and hands its facts on: those of the common sort of operation by a way of their own, so that
    /// the compiler can keep them in registers.
    #[inline(always)]
    fn run<R>(
        &self,
        op: &Op<'_>,
        one: impl FnOnce(Facts) -> R,
        several: impl FnOnce(Facts) -> R,
        uncommon: impl Fn(Facts) -> R,
    ) -> R {
        let now = time(op.at);
        let hash = self.hash(op.key);
        let mut table = self.logs.shards()[self.shard(hash)].write();
        let Some((_, log)) = table.get_mut(hash, |(key, _)| key.is(op.key)) else {
            return uncommon(self.insert(&mut table, hash, op, now));
        };
        let log = log.get_mut();
        if op.policy.limits().len() == 1 {
            if let Some(facts) = log.apply_common::<1>(op, now) {
                drop(table);
                return one(facts);
            }
        } else if op.policy.limits().len() <= 4
            && let Some(facts) = log.apply_common::<4>(op, now)
        {
            drop(table);
            return several(facts);
        }
        let facts = log.apply(op, now);
        drop(table);
        uncommon(facts)
    }

    #[inline(never)]
    fn insert(&self, table: &mut Table, hash: u64, op: &Op<'_>, now: Timestamp) -> Facts {
        let mut log = Log::new(self.next_number.fetch_add(NUMBERS_PER_LOG, Ordering::Relaxed) % NUMBERS);
        let facts = log.apply(op, now);
        if facts.newest.is_none() {
            return facts;
        }
        let rehash = |key: &Key| self.hash(key.as_bytes());
        if table.len() >= self.max_keys_per_shard {
            make_room(table, rehash, clock::now(), self.max_keys_per_shard);
        } else if table.len() == table.capacity() {
            let clock_now = clock::now();
            sweep(table, rehash, |log| has_expired(log, clock_now));
        }
        table.insert(hash, (Key::new(op.key), SharedValue::new(log)), |(key, _)| rehash(key));
        facts
    }
}

/// Four shards a thread would do; more of them make it rare that two threads meet.
fn default_shards() -> usize {
    let threads = std::thread::available_parallelism().map_or(4, usize::from);
    (threads * 32).next_power_of_two()
}

impl NowStore for MemoryStore {
    #[inline]
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        self.run(op, |facts| facts, |facts| facts, |facts| facts)
    }

    #[inline]
    fn decide_now(&self, op: &Op<'_>) -> Decision {
        self.run(op, |facts| decide(op, &facts), |facts| decide(op, &facts), |facts| decide_uncommon(op, &facts))
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> bool {
        let now = time(settlement.at);
        let hash = self.hash(settlement.key);
        let mut table = self.logs.shards()[self.shard(hash)].write();
        let slot = table.get_mut(hash, |(key, _)| key.is(settlement.key));
        slot.is_some_and(|(_, log)| log.get_mut().settle(&settlement.receipt, settlement.cost, now))
    }

    fn reset_now(&self, key: &[u8]) -> bool {
        let hash = self.hash(key);
        let removed = self.logs.shards()[self.shard(hash)].write().remove_entry(hash, |(k, _)| k.is(key));
        removed.is_some_and(|(_, log)| log.get().newest().is_some())
    }
}

#[inline(never)]
fn decide_uncommon(op: &Op<'_>, facts: &Facts) -> Decision {
    debug_assert!(facts.verify(op).is_ok(), "{facts:?} contradict {op:?}");
    decide(op, facts)
}

#[inline]
fn time(at: At) -> Timestamp {
    match at {
        At::StoreClock => clock::now(),
        At::Given(given) => given,
    }
}

impl WindowStore for MemoryStore {
    #[inline]
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        Ok(self.apply_now(&op))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<bool, Error> {
        Ok(self.settle_now(&settlement))
    }

    async fn reset(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.reset_now(key))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    /// Keys are not shown: they may be people's addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("keys", &self.len()).finish_non_exhaustive()
    }
}
