//! A store that fails on command, and operations of each kind.

use limiter_core::{Limiter, SyncStore, policy};
use limiter_memory::MemoryStore;
pub(crate) use testbed::Does;

pub(crate) type Faulty = testbed::Faulty<MemoryStore>;

/// The key of [`traffic`].
pub(crate) const SECRET: &str = "203.0.113.7";

/// One operation of each kind on `SECRET`, under 5/10s.
pub(crate) fn traffic<S: SyncStore>(limiter: &Limiter<S>) {
    let first = limiter.acquire(SECRET).now().unwrap();
    for _ in 0..5 {
        let _ = limiter.acquire(SECRET).now().unwrap();
    }
    let gold = policy!("50/10s").with_name("gold");
    let _ = limiter.acquire(SECRET).policy(&gold).now().unwrap();
    let _ = limiter.peek(SECRET).now().unwrap();
    let _ = limiter.status(SECRET).now().unwrap();
    let _ = limiter.record("other").cost(7).now().unwrap();
    let _ = limiter.refund(SECRET, first.receipt().unwrap()).now();
    let _ = limiter.reset(SECRET).now();
    limiter.acquire(SECRET).cost(6).now().unwrap_err();
}
