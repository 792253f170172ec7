//! Tables of logs, each with a lock of its own.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;
use std::{hint, iter, slice, thread};

use lock_api::MappedMutexGuard;
use spin::lock_api::{Mutex, MutexGuard};

use crate::table::Table;

/// A table and its lock in one cache line.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Shard(Mutex<Table>);

/// A locked shard.
pub(crate) type Locked<'a> = MutexGuard<'a, Table>;
/// A part of one.
pub(crate) type Mapped<'a, T> = MappedMutexGuard<'a, spin::Mutex<()>, T>;

/// How many pauses a thread that finds a shard locked makes before each further try. One is as long as an operation takes
/// where all that it needs is in the cache, and three where it is not. If that was not all, threads are at the same key, and
/// it is faster for all of them that one goes on for a while with what it has in its cache.
const PAUSES: [u32; 4] = [1, 2, 32, 64];

/// Then who has the lock sweeps or grows the shard, for some ten microseconds and more, or was interrupted: so many times the
/// processor is offered to others before each further try.
const YIELDS: usize = 100;

/// Then who has the lock may need this very processor, and be of a lower priority.
const SLEEP: Duration = Duration::from_micros(50);

impl Shard {
    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_> {
        match self.0.try_lock() {
            Some(table) => table,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Locked<'_> {
        let pauses = PAUSES.iter().map(|pauses| (0..*pauses).for_each(|_| hint::spin_loop()));
        let yields = iter::repeat_with(thread::yield_now).take(YIELDS);
        let mut waits = pauses.chain(yields).chain(iter::repeat_with(|| thread::sleep(SLEEP)));
        loop {
            waits.next();
            if let Some(table) = self.0.try_lock() {
                return table;
            }
        }
    }
}

/// A power of two of shards.
pub(crate) struct Shards {
    shards: Box<[Shard]>,
    /// Seeded per store: a stranger who picks the keys cannot pick collisions.
    seed: foldhash::fast::RandomState,
}

impl Shards {
    /// The largest power of two up to `wanted` of shards, and at least one.
    pub(crate) fn new(wanted: usize) -> Self {
        let count = 1 << wanted.max(1).ilog2();
        Self { shards: (0..count).map(|_| Shard::default()).collect(), seed: foldhash::fast::RandomState::default() }
    }

    /// Four a thread would do; more of them make it rare that two threads meet.
    pub(crate) fn default_count() -> usize {
        let threads = std::thread::available_parallelism().map_or(4, usize::from);
        (threads * 32).next_power_of_two()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn iter(&self) -> slice::Iter<'_, Shard> {
        self.shards.iter()
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.seed.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The shard of a key with this hash.
    #[inline(always)]
    pub(crate) fn of(&self, hash: u64) -> &Shard {
        // A table uses the lowest bits, and where they name no slot the highest.
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::key::Key;
    use crate::log::Log;
    use crate::table::Slot;

    #[test]
    fn waits_for_who_has_the_lock_however_long_that_takes() {
        for millis in [0, 1, 20] {
            let (shard, locked) = (Shard::default(), Barrier::new(3));
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        locked.wait();
                        assert_eq!(shard.lock().len(), 1, "another thread was let in before");
                    });
                }
                let mut table = shard.lock();
                locked.wait();
                thread::sleep(Duration::from_millis(millis));
                table.insert(0, Slot { key: Key::new(b"key"), log: Log::new(0) }, |_| 0);
            });
        }
    }

    #[test]
    fn a_slot_and_a_shard_are_a_line_each() {
        assert_eq!((size_of::<Log>(), size_of::<Slot>(), size_of::<Shard>()), (32, 64, 64));
    }
}
