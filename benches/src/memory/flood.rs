//! Floods limiters with new keys, and times each call to find the slowest.

use std::fmt::Write;
use std::time::Instant;

use hdrhistogram::Histogram;
use limiter_core::{Limiter, policy};
use limiter_memory::MemoryStore;

use super::bytes::allocated;
use super::libraries::PEERS;
use crate::record::{Figures, put};

pub(crate) const FLOOD: &str = "flood";

const BOUNDED: &str = "limiter, at most 100,000 keys";
const LARGER: &str = "limiter, at most 1,000,000 keys";
const UNBOUNDED: &str = "limiter";
const GOVERNOR: &str = "governor";
/// All contestants, in the order of the table.
pub(crate) const FLOODED: [&str; 4] = [BOUNDED, LARGER, UNBOUNDED, GOVERNOR];
const KEYS: u32 = 10_000_000;

/// Floods all contestants. Returns the mean, quantiles and the maximum of the calls in nanoseconds, and the bytes held at the
/// end.
pub(crate) fn measure() -> Figures {
    let mut figures = Figures::new();
    let policy = policy!("100/1h");
    for (who, max_keys) in [
        (BOUNDED, Some(100_000)),
        (LARGER, Some(1_000_000)),
        (UNBOUNDED, None),
    ] {
        let before = allocated();
        let store = max_keys.map_or_else(MemoryStore::new, MemoryStore::with_max_keys);
        let limiter = Limiter::new("bench", policy.clone(), store);
        flood(&mut figures, who, before, |key| {
            limiter
                .acquire(key)
                .now()
                .is_ok_and(|decision| decision.is_allowed())
        });
    }
    let before = allocated();
    let governor = (PEERS[1].limiter)(&policy);
    flood(&mut figures, GOVERNOR, before, |key| governor.allows(key));
    figures
}

fn flood(figures: &mut Figures, who: &str, before: f64, allows: impl Fn(&String) -> bool) {
    let mut times = Histogram::<u32>::new(3).expect("three digits are valid");
    let mut key = String::with_capacity(32);
    for i in 0..KEYS {
        key.clear();
        let _ = write!(key, "user:{i:011}");
        let start = Instant::now();
        let allowed = allows(&key);
        let took = start.elapsed().as_nanos() as u64;
        assert!(allowed, "{who} on {key}");
        times.record(took).expect("the histogram grows");
    }
    let mut put = |measure, figure| put(figures, who, measure, figure);
    put("mean", times.mean());
    put("p99.9", times.value_at_quantile(0.999) as f64);
    put("p99.99", times.value_at_quantile(0.9999) as f64);
    put("longest", times.max() as f64);
    put("bytes", allocated() - before);
}
