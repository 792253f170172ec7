//! The libraries behind one trait. Each is called through its public API and reads its real clock. The baselines are
//! in [`baselines`](crate::baselines).

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use governor::middleware::NoOpMiddleware;
use limiter_core::store::LogKey;
use limiter_core::{Decision, Error, Limit, Limiter, Policy, Timestamp, WindowStore};
use limiter_memory::MemoryStore;
use trypema::local::LocalRateLimiterProvider;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

/// At most `max` units in any `window`, and optionally limits on longer windows.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// The maximum.
    pub max: u32,
    /// The window.
    pub window: Duration,
    /// The number of further limits. Limit `i` allows `i` times `max` in `i` times `window`.
    pub more: u32,
}

impl Quota {
    /// Returns a quota of one window.
    #[must_use]
    pub const fn new(max: u32, window: Duration) -> Self {
        Self { max, window, more: 0 }
    }

    /// Returns the same rate in whole seconds, for libraries without a finer resolution.
    fn in_seconds(&self) -> (u64, u64) {
        let seconds = self.window.as_secs().max(1);
        let max = f64::from(self.max) * seconds as f64 / self.window.as_secs_f64();
        (max.round() as u64, seconds)
    }
}

/// A rate limiter, or a baseline.
pub trait Library: Send + Sync + Sized + 'static {
    /// Its name in the tables.
    const NAME: &str;
    /// Returns a limiter with this quota for every key.
    fn with(quota: Quota) -> Self;
    /// Acquires `cost` units of a key. Returns whether they were allowed.
    #[allow(clippy::ptr_arg, reason = "governor takes a reference to the very type of the key")]
    fn allows_n(&self, key: &String, cost: u32) -> bool;
    /// Acquires one unit, with the library's call for one unit if it has one.
    #[inline(always)]
    #[allow(clippy::ptr_arg, reason = "governor takes a reference to the very type of the key")]
    fn allows(&self, key: &String) -> bool {
        self.allows_n(key, 1)
    }
    /// Removes idle keys, if the library has a call for that.
    fn sweep(&self) {}
    /// Whether the library keeps a log, so that the window decides how much it holds.
    const KEEPS_LOG: bool = false;
    /// Whether a used-up quota refills bit by bit, so that a long measurement needs a longer window.
    const REFILLS: bool = false;
    /// Returns a limiter whose keys have `entries` entries each. They are spread over the past window if `allowed`, and use up
    /// the quota otherwise.
    fn with_logs(quota: Quota, keys: &[String], entries: u32, allowed: bool) -> Self {
        let library = Self::with(quota);
        for key in keys {
            if allowed {
                library.append_past(key, entries, quota.window);
            } else {
                (0..entries).for_each(|_| _ = library.allows(key));
            }
        }
        library
    }
    /// Appends `entries` units to a key's log, spread over the past `window`. A library without a log takes them at once.
    #[allow(clippy::ptr_arg, reason = "governor takes a reference to the very type of the key")]
    fn append_past(&self, key: &String, entries: u32, _window: Duration) {
        self.allows_n(key, entries);
    }
    /// Returns the number of entries in a key's log.
    fn entries(&self, _key: &str) -> usize {
        0
    }
}

pub(crate) fn policy(quota: Quota) -> Policy {
    let limit = |i| Limit::new(u64::from(quota.max) * u64::from(i), quota.window * i).expect("quotas are valid");
    Policy::new((1..=1 + quota.more).map(limit)).expect("quotas are valid")
}

/// Returns whether the decision allows the request. Takes a reference, because moving the decision would be measured
/// too.
#[inline(always)]
fn ours(decision: &Decision) -> bool {
    black_box(decision).allowed()
}

/// This library, without a future.
pub type Now = Direct<false>;

/// This library, without a future, reading every field of the decision.
pub type Read = Direct<true>;

/// This library, without a future. `ALL` reads every field of the decision.
pub struct Direct<const ALL: bool>(Limiter<MemoryStore>);

impl<const ALL: bool> Direct<ALL> {
    #[inline(always)]
    fn answer(decision: &Result<Decision, Error>) -> bool {
        let Ok(decision) = decision else { return false };
        if ALL {
            black_box((decision.limit(), decision.used(), decision.remaining(), decision.at(), decision.receipt()));
            black_box((decision.retry_after(), decision.refill_after(), decision.reset_after()));
        }
        ours(decision)
    }
}

impl<const ALL: bool> Library for Direct<ALL> {
    const NAME: &str = if ALL { "limiter read" } else { "limiter" };

    fn with(quota: Quota) -> Self {
        Self(Limiter::new("bench", policy(quota), MemoryStore::new()))
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        Self::answer(&self.0.acquire(key).cost(u64::from(cost)).now())
    }

    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        Self::answer(&self.0.acquire(key).now())
    }

    fn sweep(&self) {
        self.0.store().sweep();
    }

    const KEEPS_LOG: bool = true;

    fn append_past(&self, key: &String, entries: u32, window: Duration) {
        let now = Timestamp::try_from(SystemTime::now()).map_or(0, Timestamp::as_micros);
        let step = window.as_micros() as u64 / u64::from(entries);
        // Keys differ in when their entries expire.
        let phase = key.bytes().fold(0, |sum, byte| (sum * 31 + u64::from(byte)) % 1009) * step / 1009;
        for i in (0..u64::from(entries)).rev() {
            let at = Timestamp::from_micros_saturating(now - i * step - phase);
            assert!(self.0.acquire(key).at(at).now().is_ok_and(|decision| decision.allowed()));
        }
    }

    fn entries(&self, key: &str) -> usize {
        self.0.store().entries(LogKey::new(self.0.name(), key))
    }
}

/// Polls a future once, as an executor would. An in-memory store decides in the first poll.
#[inline(always)]
pub(crate) fn at_once(decision: impl Future<Output = Result<Decision, Error>>) -> bool {
    let polled = pin!(decision).poll(&mut Context::from_waker(Waker::noop()));
    matches!(&polled, Poll::Ready(Ok(decision)) if ours(decision))
}

/// This library, as a future, on a store known at compile time.
pub struct Async(Limiter<MemoryStore>);

impl Library for Async {
    const NAME: &str = "limiter async";

    fn with(quota: Quota) -> Self {
        Self(Limiter::new("bench", policy(quota), MemoryStore::new()))
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        at_once(self.0.acquire(key).cost(u64::from(cost)))
    }

    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        at_once(self.0.acquire(key))
    }
}

/// This library, as a future, on a store chosen at run time.
pub struct Dyn(Limiter<Arc<dyn WindowStore>>);

impl Library for Dyn {
    const NAME: &str = "limiter dyn";

    fn with(quota: Quota) -> Self {
        Self(Limiter::new("bench", policy(quota), Arc::new(MemoryStore::new())))
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        at_once(self.0.acquire(key).cost(u64::from(cost)))
    }

    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        at_once(self.0.acquire(key))
    }
}

/// governor, keyed, in a `DashMap`, as shipped.
pub type Governor = GovernorHashedBy<std::hash::RandomState>;

/// governor with the hasher that this library uses.
pub type GovernorFoldhash = GovernorHashedBy<foldhash::fast::RandomState>;

/// governor, keyed, in a `DashMap` with this hasher.
pub struct GovernorHashedBy<S: Hasher>(governor::DefaultKeyedRateLimiter<String, NoOpMiddleware, S>);

/// A hasher of governor's map.
pub trait Hasher: BuildHasher + Clone + Default + Send + Sync + 'static {
    /// The name of governor with it.
    const GOVERNOR: &str;
}

impl Hasher for std::hash::RandomState {
    const GOVERNOR: &str = "governor";
}

impl Hasher for foldhash::fast::RandomState {
    const GOVERNOR: &str = "governor foldhash";
}

impl<S: Hasher> Library for GovernorHashedBy<S> {
    const NAME: &str = S::GOVERNOR;
    const REFILLS: bool = true;

    fn with(quota: Quota) -> Self {
        let burst = NonZeroU32::new(quota.max).expect("a quota is not zero");
        let cell = quota.window / quota.max;
        let quota = governor::Quota::with_period(cell).expect("a period is not zero").allow_burst(burst);
        Self(governor::RateLimiter::dashmap_with_hasher(quota, S::default()))
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let cost = NonZeroU32::new(cost).expect("no cost is zero");
        self.0.check_key_n(key, cost).is_ok_and(|fits| fits.is_ok())
    }

    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }

    fn sweep(&self) {
        self.0.retain_recent();
    }
}

/// trypema, local and absolute, with buckets of `BUCKET` milliseconds.
pub struct Trypema<const BUCKET: u64> {
    provider: Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

impl<const BUCKET: u64> Library for Trypema<BUCKET> {
    const NAME: &str = if BUCKET == 1 { "trypema 1 ms" } else { "trypema 100 ms" };

    fn with(quota: Quota) -> Self {
        let (max, seconds) = quota.in_seconds();
        let provider = LocalRateLimiterProvider::builder()
            .window_size(WindowSize::seconds_or_panic(seconds))
            .bucket_size(BucketSize::milliseconds_or_panic(BUCKET))
            .disable_cleanup()
            .build()
            .expect("the configuration is valid");
        Self { provider, rate: RateLimit::per_second_or_panic(max as f64 / seconds as f64) }
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let decision = self.provider.absolute().inc(key, &self.rate, u64::from(cost));
        matches!(decision, RateLimitDecision::Allowed)
    }
}

/// limitador, in memory, with one variable for the key.
pub struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: limitador::limit::Namespace,
}

impl Library for Limitador {
    const NAME: &str = "limitador";

    fn with(quota: Quota) -> Self {
        let (max, seconds) = quota.in_seconds();
        let limiter = limitador::RateLimiter::new(4_000_000);
        let key = "key".try_into().expect("the expression is valid");
        limiter.add_limit(limitador::limit::Limit::new("bench", max, seconds, vec![], vec![key]));
        Self { limiter, namespace: "bench".into() }
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let context = HashMap::from([("key".to_owned(), key.clone())]).into();
        let checked = self.limiter.check_rate_limited_and_update(&self.namespace, &context, u64::from(cost));
        checked.is_ok_and(|result| !result.limited)
    }
}

/// throttlecrab in a mutex, because its limiter needs `&mut self`.
pub struct Throttlecrab {
    limiter: Mutex<throttlecrab::RateLimiter<throttlecrab::PeriodicStore>>,
    max: i64,
    seconds: i64,
}

impl Library for Throttlecrab {
    const NAME: &str = "throttlecrab";

    fn with(quota: Quota) -> Self {
        let (max, seconds) = quota.in_seconds();
        let limiter = Mutex::new(throttlecrab::RateLimiter::new(throttlecrab::PeriodicStore::new()));
        Self { limiter, max: max as i64, seconds: seconds as i64 }
    }

    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let mut limiter = self.limiter.lock().expect("no thread panics");
        let answer = limiter.rate_limit(key, self.max, self.max, self.seconds, i64::from(cost), SystemTime::now());
        answer.is_ok_and(|(allowed, _)| allowed)
    }
}
