//! This library, called in several ways.

use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use limiter_core::store::{Facts, LogKey, Op, Settlement, SettlementFacts, async_trait};
use limiter_core::{Decision, Error, Limiter, Policy, SharedStore, Timestamp, WindowStore};
use limiter_memory::MemoryStore;
use limiter_wrappers::DenialCache;

use super::library::Library;

/// Takes a reference, because moving the decision would be measured too.
#[inline(always)]
fn allowed(decision: &Result<Decision, Error>) -> bool {
    matches!(decision, Ok(decision) if black_box(decision).allowed())
}

#[inline(always)]
fn allowed_after_reading_all(decision: &Result<Decision, Error>) -> bool {
    if let Ok(decision) = decision {
        black_box((decision.limit(), decision.used(), decision.remaining(), decision.at(), decision.receipt()));
        black_box((decision.retry_after(), decision.refill_after(), decision.reset_after()));
    }
    allowed(decision)
}

/// Polls a future once, as an executor would. An in-memory store decides in the first poll.
#[inline(always)]
fn allowed_at_once(decision: impl Future<Output = Result<Decision, Error>>) -> bool {
    let polled = pin!(decision).poll(&mut Context::from_waker(Waker::noop()));
    matches!(&polled, Poll::Ready(decision) if allowed(decision))
}

/// Declares a way to call this library: its type, its name, its store, and how a request becomes a verdict.
macro_rules! form {
    ($(#[$doc:meta])* $form:ident, $name:literal, $store:ty, $new:expr, $request:ident => $verdict:expr, { $($more:tt)* }) => {
        $(#[$doc])*
        pub(crate) struct $form(Limiter<$store>);

        impl Library for $form {
            const NAME: &str = $name;

            fn with(policy: &Policy) -> Self {
                Self(Limiter::new("bench", policy.clone(), $new))
            }

            #[inline(always)]
            fn allows_n(&self, key: &String, cost: u32) -> bool {
                let $request = self.0.acquire(key).cost(u64::from(cost));
                $verdict
            }

            #[inline(always)]
            fn allows(&self, key: &String) -> bool {
                let $request = self.0.acquire(key);
                $verdict
            }

            $($more)*
        }
    };
}

form!(
    /// Without a future.
    Now, "limiter", MemoryStore, MemoryStore::new(), request => allowed(&request.now()), {
    const KEEPS_LOG: bool = true;

    fn sweep(&self) {
        self.0.store().sweep();
    }

    fn append_past(&self, key: &String, entries: u32, window: Duration) {
        let now = Timestamp::try_from(SystemTime::now()).map_or(0, Timestamp::as_micros);
        let step = window.as_micros() as u64 / u64::from(entries);
        // Keys differ in when their entries expire.
        let phase = key.bytes().fold(0, |sum, byte| (sum * 31 + u64::from(byte)) % 1009) * step / 1009;
        for i in (0..u64::from(entries)).rev() {
            let at = Timestamp::from_micros_saturating(now - i * step - phase);
            assert!(allowed(&self.0.acquire(key).at(at).now()), "{key} is used up");
        }
    }

    fn entries(&self, key: &str) -> usize {
        self.0.store().entries(LogKey::new(self.0.name(), key))
    }
});

form!(
    /// Without a future, reading every field of the decision.
    Read, "limiter read", MemoryStore, MemoryStore::new(), request => allowed_after_reading_all(&request.now()), {});

form!(
    /// As a future, on a store known at compile time.
    Async, "limiter async", MemoryStore, MemoryStore::new(), request => allowed_at_once(request), {});

form!(
    /// As a future, on a store chosen at run time.
    Dyn, "limiter dyn", SharedStore, Arc::new(MemoryStore::new()), request => allowed_at_once(request), {});

form!(
    /// With the cache of denials, around a store that takes a future for every decision.
    Cached, "limiter cached denial", DenialCache<Remote>, DenialCache::new(Remote(MemoryStore::new()), 1_000_000),
    request => allowed_at_once(request), {});

/// A store in memory that never decides at once, like one on a server.
#[derive(Debug)]
pub(crate) struct Remote(MemoryStore);

#[async_trait]
impl WindowStore for Remote {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.0.apply(op).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.0.settle(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.0.reset(log).await
    }
}

/// Under a caller's clock, which goes on a microsecond with every acquire. With as many units in as many microseconds, one
/// entry expires as one comes.
pub(crate) struct Sliding {
    limiter: Limiter<MemoryStore>,
    micros: AtomicU64,
}

impl Library for Sliding {
    const NAME: &str = Now::NAME;

    fn with(policy: &Policy) -> Self {
        Self { limiter: Limiter::new("bench", policy.clone(), MemoryStore::new()), micros: AtomicU64::new(1 << 50) }
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let micros = self.micros.load(Ordering::Relaxed) + 1;
        self.micros.store(micros, Ordering::Relaxed);
        let at = Timestamp::from_micros_saturating(micros);
        allowed(&self.limiter.acquire(key).cost(u64::from(cost)).at(at).now())
    }

    fn append_past(&self, key: &String, entries: u32, _: Duration) {
        (0..entries).for_each(|_| assert!(self.allows(key), "{key} is used up"));
    }
}
