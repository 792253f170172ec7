//! This library, called in several ways.

use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use limiter_core::store::LogKey;
use limiter_core::{Decision, Error, Limiter, Policy, Timestamp, WindowStore};
use limiter_memory::MemoryStore;

use super::limits::Limits;

/// Takes a reference, because moving the decision would also be measured.
#[inline(always)]
fn allowed(decision: &Result<Decision, Error>) -> bool {
    matches!(decision, Ok(decision) if black_box(decision).is_allowed())
}

/// Polls a future once, as an executor would. An in-memory store decides in the first poll.
#[inline(always)]
fn allowed_in_one_poll(decision: impl Future<Output = Result<Decision, Error>>) -> bool {
    let polled = pin!(decision).poll(&mut Context::from_waker(Waker::noop()));
    matches!(&polled, Poll::Ready(decision) if allowed(decision))
}

/// Without a future.
pub(super) struct Now(Limiter<MemoryStore>);

impl Now {
    pub(super) fn new(policy: &Policy) -> Self {
        Self(Limiter::new("bench", policy.clone(), MemoryStore::new()))
    }
}

impl Limits for Now {
    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        allowed(&self.0.acquire(key).cost(u64::from(cost)).now())
    }

    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        allowed(&self.0.acquire(key).now())
    }

    fn append_past(&self, key: &String, entries: u32, window: Duration) {
        let now = Timestamp::try_from(SystemTime::now()).map_or(0, Timestamp::as_micros);
        let step = window.as_micros() as u64 / u64::from(entries);
        // Keys differ in when their entries expire.
        let phase = key
            .bytes()
            .fold(0, |sum, byte| (sum * 31 + u64::from(byte)) % 1009)
            * step
            / 1009;
        for i in (0..u64::from(entries)).rev() {
            let at = Timestamp::from_micros_saturating(now - i * step - phase);
            assert!(
                allowed(&self.0.acquire(key).at(at).now()),
                "{key} has no units left"
            );
        }
    }

    fn entries(&self, key: &str) -> usize {
        self.0.store().entries(LogKey::new(self.0.name(), key))
    }
}

/// As a future.
pub(super) struct Polled<S: WindowStore>(Limiter<S>);

impl<S: WindowStore> Polled<S> {
    pub(super) fn new(policy: &Policy, store: S) -> Self {
        Self(Limiter::new("bench", policy.clone(), store))
    }
}

impl<S: WindowStore> Limits for Polled<S> {
    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        allowed_in_one_poll(self.0.acquire(key).cost(u64::from(cost)))
    }

    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        allowed_in_one_poll(self.0.acquire(key))
    }
}
