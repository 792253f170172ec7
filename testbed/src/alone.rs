//! Tests that run one after the other.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps other tests of the same program from running: see [`alone`].
#[derive(Debug)]
#[must_use = "other tests run as soon as it is dropped"]
pub struct Alone {
    _lock: MutexGuard<'static, ()>,
}

/// Waits until no other test of this program holds an [`Alone`]. Every test of a program that asserts times must call it.
pub fn alone() -> Alone {
    static LOCK: Mutex<()> = Mutex::new(());
    Alone { _lock: LOCK.lock().unwrap_or_else(PoisonError::into_inner) }
}
