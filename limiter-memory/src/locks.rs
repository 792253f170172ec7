//! Locks, each with what it guards in one cache line.

use std::time::Duration;
use std::{hint, iter, slice, thread};

use lock_api::MappedMutexGuard;
use spin::lock_api::{Mutex, MutexGuard};

/// What is locked, and its lock.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Lock<T>(Mutex<T>);

/// What one has locked.
pub(crate) type Locked<'a, T> = MutexGuard<'a, T>;
/// A part of it.
pub(crate) type Mapped<'a, T> = MappedMutexGuard<'a, spin::Mutex<()>, T>;

/// How many pauses a thread that finds a lock taken makes before each further try. One is as long as an operation takes
/// where all that it needs is in the cache, and three where it is not. If that was not all, threads are at the same key, and
/// it is faster for all of them that one goes on for a while with what it has in its cache.
const PAUSES: [u32; 4] = [1, 2, 32, 64];

/// Then who has the lock sweeps or grows a shard, for some ten microseconds and more, or was interrupted: so many times the
/// processor is offered to others before each further try.
const YIELDS: usize = 100;

/// Then who has the lock may need this very processor, and be of a lower priority.
const SLEEP: Duration = Duration::from_micros(50);

impl<T> Lock<T> {
    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        match self.0.try_lock() {
            Some(locked) => locked,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Locked<'_, T> {
        let pauses = PAUSES.iter().map(|pauses| (0..*pauses).for_each(|_| hint::spin_loop()));
        let yields = iter::repeat_with(thread::yield_now).take(YIELDS);
        let mut waits = pauses.chain(yields).chain(iter::repeat_with(|| thread::sleep(SLEEP)));
        loop {
            waits.next();
            if let Some(locked) = self.0.try_lock() {
                return locked;
            }
        }
    }
}

/// A power of two of them, of which a hash names one.
pub(crate) struct Locks<T>(Box<[Lock<T>]>);

impl<T: Default> Locks<T> {
    /// The largest power of two up to `wanted`, and at least one.
    pub(crate) fn new(wanted: usize) -> Self {
        let count = 1 << wanted.max(1).ilog2();
        Self((0..count).map(|_| Lock::default()).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> slice::Iter<'_, Lock<T>> {
        self.0.iter()
    }

    /// The one for a key with this hash.
    #[inline(always)]
    pub(crate) fn of(&self, hash: u64) -> &Lock<T> {
        // A table uses the lowest bits, and where they name no slot the highest.
        &self.0[(hash >> 32) as usize & (self.0.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::line::{Line, Slot};
    use crate::log::Log;
    use crate::table::Table;

    #[test]
    fn waits_for_who_has_the_lock_however_long_that_takes() {
        for millis in [0, 1, 20] {
            let (lock, locked) = (Lock::<bool>::default(), Barrier::new(3));
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        locked.wait();
                        assert!(*lock.lock(), "another thread was let in before");
                    });
                }
                let mut guarded = lock.lock();
                locked.wait();
                thread::sleep(Duration::from_millis(millis));
                *guarded = true;
            });
        }
    }

    #[test]
    fn a_line_and_a_shard_are_a_cache_line_each() {
        assert_eq!((size_of::<Log>(), size_of::<Slot>()), (32, 56));
        assert_eq!((size_of::<Lock<Line>>(), size_of::<Lock<Table>>()), (64, 64));
    }
}
