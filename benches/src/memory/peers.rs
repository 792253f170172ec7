//! The peers. Each is called through its public API.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::SystemTime;

use governor::middleware::NoOpMiddleware;
use limiter_core::Policy;
use trypema::local::LocalRateLimiterProvider;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::limits::{Limits, in_seconds, only_limit};

/// governor, keyed, in a `DashMap` with this hasher.
pub(super) struct Governor<S: BuildHasher + Clone>(
    governor::DefaultKeyedRateLimiter<String, NoOpMiddleware, S>,
);

impl<S: BuildHasher + Clone + Default> Governor<S> {
    pub(super) fn new(policy: &Policy) -> Self {
        let (max, window) = only_limit(policy);
        let burst = NonZeroU32::new(max).expect("a maximum is not zero");
        let quota = governor::Quota::with_period(window / max)
            .expect("a period is not zero")
            .allow_burst(burst);
        Self(governor::RateLimiter::dashmap_with_hasher(
            quota,
            S::default(),
        ))
    }
}

impl<S: BuildHasher + Clone + Send + Sync> Limits for Governor<S> {
    #[inline(always)]
    fn allows_n(&self, key: &String, cost: u32) -> bool {
        let cost = NonZeroU32::new(cost).expect("no cost is zero");
        self.0.check_key_n(key, cost).is_ok_and(|fits| fits.is_ok())
    }

    #[inline(always)]
    fn allows(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

/// trypema, local and absolute, with buckets of this many milliseconds.
pub(super) fn trypema(policy: &Policy, bucket: u64) -> impl Limits + use<> {
    let (max, seconds) = in_seconds(policy);
    let provider = LocalRateLimiterProvider::builder()
        .window_size(WindowSize::seconds_or_panic(seconds))
        .bucket_size(BucketSize::milliseconds_or_panic(bucket))
        .disable_cleanup()
        .build()
        .expect("the configuration is valid");
    let rate = RateLimit::per_second_or_panic(max as f64 / seconds as f64);
    move |key: &String, cost| {
        let decision = provider.absolute().inc(key, &rate, u64::from(cost));
        matches!(decision, RateLimitDecision::Allowed)
    }
}

/// limitador, in memory, with one variable for the key.
pub(super) fn limitador(policy: &Policy) -> impl Limits + use<> {
    let (max, seconds) = in_seconds(policy);
    let limiter = limitador::RateLimiter::new(4_000_000);
    let variable = "key".try_into().expect("the expression is valid");
    limiter.add_limit(limitador::limit::Limit::new(
        "bench",
        max,
        seconds,
        vec![],
        vec![variable],
    ));
    let namespace = "bench".into();
    move |key: &String, cost| {
        let context = HashMap::from([("key".to_owned(), key.clone())]).into();
        let checked = limiter.check_rate_limited_and_update(&namespace, &context, u64::from(cost));
        checked.is_ok_and(|result| !result.limited)
    }
}

/// throttlecrab in a mutex, because its limiter needs `&mut self`.
pub(super) fn throttlecrab(policy: &Policy) -> impl Limits + use<> {
    let ((max, seconds), store) = (in_seconds(policy), throttlecrab::PeriodicStore::new());
    let max = max as i64;
    let seconds = seconds as i64;
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
    move |key: &String, cost| {
        let mut limiter = limiter.lock().expect("no thread panics");
        let answer = limiter.rate_limit(key, max, max, seconds, i64::from(cost), SystemTime::now());
        answer.is_ok_and(|(allowed, _)| allowed)
    }
}
