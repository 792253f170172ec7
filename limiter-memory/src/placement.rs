//! Placement: finds a key's log, inserts and removes keys, and locks no more than necessary.

mod eviction;
pub(crate) mod key;
pub(crate) mod lock;
pub(crate) mod table;

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{iter, mem, thread};

use limiter_core::Timestamp;

use self::eviction::sweep;
use self::key::{Key, KeyedLog};
use self::lock::{BucketGuard, Guard, Lock, LockArray, LogGuard};
use self::table::Table;
use crate::log::LogForm;

/// The number of direct slots, if a store has any.
const DIRECT_SLOTS: usize = 4096;

/// The shards per thread of an unbounded store. With more than four, two threads rarely need the same shard.
const SHARDS_PER_THREAD: usize = 32;

/// A bounded store has shards of at least this many keys and at most twice as many, because the hash does not spread keys evenly
/// over smaller ones, and eviction may search a whole shard.
const KEYS_PER_SHARD: usize = 128;

/// The most shards of a bounded store: 256 KiB.
const MOST_SHARDS: usize = 4096;

/// All logs of a store.
///
/// A direct slot is locked before its key's shard, and stays locked until the key is found or inserted: otherwise another thread
/// could insert the same key into both.
pub(crate) struct Placement {
    /// Each for one key.
    direct: LockArray<DirectSlot>,
    /// Whether all direct slots are closed. They never reopen: a thread that saw them closed skips their locks and could insert
    /// a duplicate.
    direct_closed: AtomicBool,
    /// For all keys that are in no direct slot.
    shards: LockArray<Table>,
    /// A shard with this many keys makes the direct slots close.
    close_at: usize,
    max_keys_per_shard: usize,
    /// Random for each store, so that nobody can choose keys that collide.
    seed: foldhash::fast::RandomState,
}

/// The locked place for a key that the store does not hold.
pub(crate) struct Vacancy<'a> {
    /// `None` once direct slots are closed.
    slot: Option<Guard<'a, DirectSlot>>,
    shard: Guard<'a, Table>,
}

/// Where a key's log is, locked.
pub(crate) enum Located<'a> {
    InSlot(LogGuard<'a>),
    InShard(BucketGuard<'a>),
    Nowhere(Vacancy<'a>),
}

impl Placement {
    pub(crate) fn new(max_keys: usize) -> Self {
        let threads = thread::available_parallelism().map_or(4, usize::from);
        let shards = match max_keys {
            usize::MAX => threads.next_power_of_two() * SHARDS_PER_THREAD,
            _ => (max_keys / KEYS_PER_SHARD + 1).min(MOST_SHARDS),
        };
        let shards = LockArray::new(shards);
        // The bound does not count keys in direct slots. So they close before a shard is full, or are never open.
        let closed = max_keys / 16 < DIRECT_SLOTS;
        Self {
            direct: LockArray::new(if closed { 1 } else { DIRECT_SLOTS }),
            direct_closed: closed.into(),
            close_at: (DIRECT_SLOTS / shards.all().len()).max(8),
            max_keys_per_shard: (max_keys / shards.all().len()).max(1),
            shards,
            seed: foldhash::fast::RandomState::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        let is_taken = |slot: &&Lock<DirectSlot>| matches!(*slot.lock(), DirectSlot::Taken(_));
        let direct = self.open_slots().filter(is_taken).count();
        let shards = self.shards.all().iter();
        direct + shards.map(|shard| shard.lock().len()).sum::<usize>()
    }

    #[inline(always)]
    pub(crate) fn has_direct_slots(&self) -> bool {
        !self.direct_closed.load(Ordering::Acquire)
    }

    fn open_slots(&self) -> impl Iterator<Item = &Lock<DirectSlot>> {
        let open = self.has_direct_slots();
        self.direct.all().iter().filter(move |_| open)
    }

    #[inline(always)]
    pub(crate) fn hash(&self, name: u32, key: &[u8]) -> u64 {
        let mut hasher = self.seed.build_hasher();
        hasher.write(key);
        // Names are few and chosen by the program, so a multiplication spreads them well enough.
        hasher.finish() ^ u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn rehash(&self) -> impl Fn(&Key) -> u64 {
        |key| {
            let (name, key) = key.parts();
            self.hash(name, key)
        }
    }

    /// Returns a key's log.
    pub(crate) fn find(&self, name: u32, key: &[u8]) -> Option<LogGuard<'_>> {
        match self.locate(name, key) {
            Located::InSlot(log) => Some(log),
            Located::InShard(log) => Some(BucketGuard::map(log, |log| &mut log.keyed.log)),
            Located::Nowhere(_) => None,
        }
    }

    /// Returns a key's log, or the locked place for it.
    pub(crate) fn locate(&self, name: u32, key: &[u8]) -> Located<'_> {
        let hash = self.hash(name, key);
        let direct = self.has_direct_slots();
        let slot = match direct.then(|| self.find_direct(hash, name, key)) {
            Some(Ok(log)) => return Located::InSlot(log),
            other => other.and_then(Result::err),
        };
        let found = self.find_in_shard(slot, hash, name, key);
        found.map_or_else(Located::Nowhere, Located::InShard)
    }

    /// Returns a key's log if it is in its direct slot, otherwise the locked slot.
    #[inline(always)]
    pub(crate) fn find_direct(
        &self,
        hash: u64,
        name: u32,
        key: &[u8],
    ) -> Result<LogGuard<'_>, Guard<'_, DirectSlot>> {
        Guard::try_map(self.direct.of(hash).lock(), |slot| slot.log_of(name, key))
    }

    /// Returns a key's log if it is in its shard.
    #[inline(always)]
    pub(crate) fn find_in_shard<'a>(
        &'a self,
        slot: Option<Guard<'a, DirectSlot>>,
        hash: u64,
        name: u32,
        key: &[u8],
    ) -> Result<BucketGuard<'a>, Vacancy<'a>> {
        Guard::try_map(self.shards.of(hash).lock(), |table| {
            table.get_mut(hash, name, key)
        })
        .map_err(|shard| Vacancy { slot, shard })
    }

    /// Inserts a log into its direct slot if the slot is free, otherwise into the shard, which may evict another log.
    pub(crate) fn insert(
        &self,
        Vacancy { slot, mut shard }: Vacancy<'_>,
        name: u32,
        key: &[u8],
        log: LogForm,
        now: impl Fn() -> Timestamp,
    ) {
        let keyed = KeyedLog {
            key: Key::new(name, key),
            log,
        };
        if let Some(mut slot) = slot {
            slot.take_if(|old| old.log.has_expired(now()));
            if let DirectSlot::Vacant = *slot {
                *slot = DirectSlot::Taken(keyed);
                return;
            }
        }
        let max_keys = self.max_keys_per_shard;
        eviction::insert(&mut shard, self.rehash(), keyed, &now, max_keys);
        let close = shard.len() >= self.close_at;
        // A direct slot must not be locked while a shard is.
        drop(shard);
        if close && self.has_direct_slots() {
            self.close_direct_slots(now());
        }
    }

    /// Moves all keys to the shards. Until the last one has moved, all operations begin with their key's direct slot.
    #[cold]
    fn close_direct_slots(&self, now: Timestamp) {
        for slot in self.direct.all() {
            let mut slot = slot.lock();
            if let DirectSlot::Taken(keyed) = mem::replace(&mut *slot, DirectSlot::Closed) {
                let mut shard = self.shards.of(self.rehash()(&keyed.key)).lock();
                let max_keys = self.max_keys_per_shard;
                eviction::insert(&mut shard, self.rehash(), keyed, || now, max_keys);
            }
        }
        self.direct_closed.store(true, Ordering::Release);
    }

    /// Removes a key and returns its log.
    pub(crate) fn remove(&self, name: u32, key: &[u8]) -> Option<LogForm> {
        let hash = self.hash(name, key);
        let mut slot = self.has_direct_slots().then(|| self.direct.of(hash).lock());
        let direct = slot
            .as_mut()
            .and_then(|slot| slot.take_if(|keyed| keyed.key.is(name, key)));
        let in_shard = || {
            let mut shard = self.shards.of(hash).lock();
            shard.remove(hash, name, key, self.rehash())
        };
        direct.or_else(in_shard).map(|keyed| keyed.log)
    }

    /// Puts a log in the place of the key's log, under its lock: no call sees the key without a log.
    pub(crate) fn replace(
        &self,
        name: u32,
        key: &[u8],
        mut log: LogForm,
        now: impl Fn() -> Timestamp,
    ) {
        match self.locate(name, key) {
            Located::InSlot(mut old) => *old = log,
            Located::InShard(mut old) => {
                old.oldest = log.no_oldest();
                old.keyed.log = log;
            }
            Located::Nowhere(vacancy) => self.insert(vacancy, name, key, log, now),
        }
    }

    /// Returns copies of all logs. Locks one slot or shard at a time, and copies no more than a part of a shard while it is locked.
    pub(crate) fn copies(&self) -> impl Iterator<Item = KeyedLog> {
        // The direct slots first: keys move from them to the shards, never back.
        let direct = self
            .direct
            .all()
            .iter()
            .filter_map(|slot| match &*slot.lock() {
                DirectSlot::Taken(keyed) => Some(keyed.clone()),
                _ => None,
            });
        let in_shards = self.shards.all().iter().flat_map(move |shard| {
            let mut next = Some(0);
            let parts = iter::from_fn(move || {
                let (part, after) = shard.lock().part(next?, self.rehash());
                next = after;
                Some(part)
            });
            parts.flatten()
        });
        direct.chain(in_shards)
    }

    /// Evicts the logs for which `is_over` holds, and returns how many there were. Locks one slot or shard at a time.
    pub(crate) fn sweep(&self, is_over: impl Fn(&LogForm) -> bool) -> usize {
        let evict =
            |slot: &&Lock<DirectSlot>| slot.lock().take_if(|keyed| is_over(&keyed.log)).is_some();
        let direct = self.open_slots().filter(evict).count();
        let sweep = |shard: &Lock<Table>| sweep(&mut shard.lock(), self.rehash(), &is_over);
        direct + self.shards.all().iter().map(sweep).sum::<usize>()
    }
}

/// A place for one key.
#[derive(Default)]
pub(crate) enum DirectSlot {
    #[default]
    Vacant,
    Taken(KeyedLog),
    /// For good: all keys are in the shards.
    Closed,
}

impl DirectSlot {
    /// Returns the log of this key if it is here.
    #[inline(always)]
    pub(crate) fn log_of(&mut self, name: u32, key: &[u8]) -> Option<&mut LogForm> {
        match self {
            Self::Taken(keyed) if keyed.key.is(name, key) => Some(&mut keyed.log),
            _ => None,
        }
    }

    /// Takes the log out if `matches` holds for it.
    pub(crate) fn take_if(&mut self, matches: impl FnOnce(&KeyedLog) -> bool) -> Option<KeyedLog> {
        match mem::take(self) {
            Self::Taken(keyed) if matches(&keyed) => Some(keyed),
            other => {
                *self = other;
                None
            }
        }
    }
}

// A slot and a shard are one cache line each.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<LogForm>() == 32 && size_of::<KeyedLog>() == 56);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Lock<DirectSlot>>() == 64 && size_of::<Lock<Table>>() == 64);
