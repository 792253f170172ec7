//! A store that fails on command, and operations of each kind.

use limiter_core::store::Op;
use limiter_core::{Limiter, NowStore, Policy, policy};
use limiter_memory::MemoryStore;
pub(crate) use testbed::Does;

pub(crate) type Faulty = testbed::Faulty<MemoryStore>;

/// Returns what a log of the limiter `t` has used, beyond the maximum too.
pub(crate) fn used(server: &Faulty, key: impl AsRef<[u8]>, policy: &Policy) -> u64 {
    server.store().apply_now(&Op::peek(&key, policy).with_name("t".into())).log.usage[0].used
}

/// The key of [`traffic`].
pub(crate) const SECRET: &str = "203.0.113.7";

/// One operation of each kind on `SECRET`, under 5/10s.
pub(crate) fn traffic<S: NowStore>(limiter: &Limiter<S>) {
    for _ in 0..6 {
        let _ = limiter.acquire(SECRET).now().unwrap();
    }
    let gold = policy!("50/10s").with_name("gold");
    let decision = limiter.acquire(SECRET).policy(&gold).now().unwrap();
    let _ = limiter.peek(SECRET).now().unwrap();
    let _ = limiter.status(SECRET).now().unwrap();
    let _ = limiter.record("other").cost(7).now().unwrap();
    let _ = limiter.refund(SECRET, decision.receipt().unwrap()).now();
    limiter.reset(SECRET).now();
    limiter.acquire(SECRET).cost(6).now().unwrap_err();
}
