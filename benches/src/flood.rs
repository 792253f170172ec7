//! Floods limiters with new keys, and times each call to find the slowest.

use std::fmt::Write;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;
use serde::{Deserialize, Serialize};

use crate::bytes::Measuring;

/// The contestants with goals.
pub(crate) const BOUNDED: &str = "limiter, at most 100,000 keys";
pub(crate) const LARGER: &str = "limiter, at most 1,000,000 keys";
/// The limit of each key.
const MAX: u32 = 100;
/// The number of flood keys between two requests of the key that has used up its limit.
pub(crate) const VICTIM_EVERY: u32 = 100_000;

/// What one contestant did.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Flood {
    /// The contestant.
    pub who: String,
    /// The keys of the flood.
    pub keys: u32,
    /// The mean, in nanoseconds.
    pub mean: f64,
    /// The time that 99.9 % of the calls do not exceed, in nanoseconds.
    pub p999: u64,
    /// The same for 99.99 %.
    pub p9999: u64,
    /// The longest call, in nanoseconds.
    pub max: u64,
    /// Whether the key that had used up its limit was denied throughout. `None` if there is none.
    pub victim_denied: Option<bool>,
    /// The bytes held at the end.
    pub bytes: isize,
}

/// Floods all contestants with this many keys.
#[must_use]
pub fn compare(keys: u32) -> Vec<Flood> {
    let ours = |who: &str, store: fn() -> MemoryStore| {
        let measuring = Measuring::start();
        let limiter = Limiter::new("bench", policy!("100/1h"), store());
        flood(who, keys, &measuring, |key| limiter.acquire(key).now().is_ok_and(|decision| decision.allowed()))
    };
    let bounded = ours(BOUNDED, || MemoryStore::with_max_keys(100_000));
    let larger = ours(LARGER, || MemoryStore::with_max_keys(1_000_000));
    let unbounded = ours("limiter", MemoryStore::new);
    let measuring = Measuring::start();
    let cell = Duration::from_secs(3600) / MAX;
    let quota = governor::Quota::with_period(cell).expect("a period is not zero");
    let governor = governor::RateLimiter::dashmap(quota.allow_burst(NonZeroU32::MIN.saturating_add(MAX - 1)));
    let governor = flood("governor", keys, &measuring, |key| governor.check_key(key).is_ok());
    let fastest =
        [&bounded, &larger, &unbounded, &governor].map(|flood| flood.mean).into_iter().fold(f64::MAX, f64::min);
    let length = Duration::from_nanos(fastest as u64);
    let idle = |_: &String| {
        let start = Instant::now();
        while black_box(start).elapsed() < length {}
        true
    };
    let idle = flood("baseline: a loop that waits", keys, &Measuring::start(), idle);
    vec![bounded, larger, unbounded, governor, Flood { victim_denied: None, ..idle }]
}

fn flood(who: &str, keys: u32, measuring: &Measuring, allows: impl Fn(&String) -> bool) -> Flood {
    let victim = "victim".to_owned();
    for _ in 0..MAX {
        allows(&victim);
    }
    let mut times = Histogram::<u32>::new(3).expect("three digits are valid");
    let (mut key, mut victim_denied) = (String::with_capacity(32), true);
    for i in 0..keys {
        key.clear();
        let _ = write!(key, "user:{i:011}");
        let start = Instant::now();
        let allowed = allows(&key);
        let took = start.elapsed().as_nanos() as u64;
        assert!(allowed, "{who} on {key}");
        times.record(took).expect("the histogram grows");
        if i % VICTIM_EVERY == VICTIM_EVERY - 1 {
            victim_denied &= !allows(&victim);
        }
    }
    let at = |quantile| times.value_at_quantile(quantile);
    Flood {
        who: who.to_owned(),
        keys,
        mean: times.mean(),
        p999: at(0.999),
        p9999: at(0.9999),
        max: times.max(),
        victim_denied: Some(victim_denied),
        bytes: measuring.taken(),
    }
}
