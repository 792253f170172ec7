//! The lock: one byte, in the cache line that it guards. Unlocking is a plain store, because there is no queue.

use std::time::Duration;
use std::{hint, iter, thread};

use lock_api::MappedMutexGuard;
use spin::lock_api::{Mutex, MutexGuard};

use super::table::BucketLog;
use crate::log::LogForm;

/// A value and its lock, at the start of a cache line.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Lock<T>(Mutex<T>);

/// A locked value.
pub(crate) type Guard<'a, T> = MutexGuard<'a, T>;

/// A log in a locked slot or shard.
pub(crate) type LogGuard<'a> = MappedMutexGuard<'a, spin::Mutex<()>, LogForm>;

/// A log in a locked shard, with the rest of its bucket.
pub(crate) type BucketGuard<'a> = MappedMutexGuard<'a, spin::Mutex<()>, BucketLog>;

/// Pauses between attempts. One pause takes as long as an operation on cached data, three as long as a cache miss. Threads that
/// still collide use the same key, and are faster together if one of them keeps it in its cache for a while.
const PAUSES: [u32; 4] = [1, 2, 32, 64];

/// Then the holder grows or sweeps a shard for ten microseconds or more, or was interrupted: yield this often.
const YIELDS: usize = 100;

/// The holder may be a lower-priority thread waiting for this core, so sleep instead of yielding.
const SLEEP: Duration = Duration::from_micros(50);

impl<T> Lock<T> {
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let pauses = PAUSES
            .iter()
            .map(|pauses| (0..*pauses).for_each(|_| hint::spin_loop()));
        let yields = iter::repeat_with(thread::yield_now).take(YIELDS);
        let mut waits = pauses
            .chain(yields)
            .chain(iter::repeat_with(|| thread::sleep(SLEEP)));
        loop {
            waits.next();
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
    }
}

/// A power of two of locked values, each chosen by a hash.
pub(crate) struct LockArray<T>(Box<[Lock<T>]>);

impl<T: Default> LockArray<T> {
    /// Returns the largest power of two of them up to `wanted`, at least one.
    pub(crate) fn new(wanted: usize) -> Self {
        let count = 1 << wanted.max(1).ilog2();
        Self((0..count).map(|_| Lock::default()).collect())
    }

    pub(crate) fn all(&self) -> &[Lock<T>] {
        &self.0
    }

    /// Returns the value for keys with this hash.
    #[inline(always)]
    pub(crate) fn of(&self, hash: u64) -> &Lock<T> {
        // A table uses the lowest bits, and the highest for keys whose low bits name no bucket.
        &self.0[(hash >> 32) as usize & (self.0.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn waits_however_long_the_lock_is_held() {
        for millis in [0, 1, 20] {
            let lock = Lock::<bool>::default();
            let locked = Barrier::new(3);
            thread::scope(|scope| {
                let wait = || {
                    locked.wait();
                    assert!(*lock.lock(), "another thread was let in before");
                };
                drop([scope.spawn(wait), scope.spawn(wait)]);
                let mut guard = lock.lock();
                locked.wait();
                thread::sleep(Duration::from_millis(millis));
                *guard = true;
            });
        }
    }
}
