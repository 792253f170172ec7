//! Bugs of other limiters, taken from their sources and bug reports. Each test runs in memory and in Redis.
//!
//! The doc comment of a test describes the bug; the test checks that it does not occur here.

use std::sync::Arc;
use std::time::Duration;

use limiter::store::WindowStore;
use limiter::time::Timestamp;
use limiter::{Counting, Decision, Error, ErrorKind, Limit, LimitStatus, Limiter, Policy};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND;

/// The store under test. Times are in microseconds after `START`.
struct Tested<S>(Arc<S>);

impl<S: WindowStore> Tested<S> {
    fn limiter(&self, policy: &Policy) -> Limiter<Arc<S>> {
        Limiter::new("test", policy.clone(), Arc::clone(&self.0))
    }

    async fn try_acquire(&self, key: &str, policy: &Policy, cost: u64, at: u64) -> Result<Decision, Error> {
        self.limiter(policy).acquire(key).cost(cost).at(time(at)).await
    }

    async fn acquire(&self, key: &str, policy: &Policy, cost: u64, at: u64) -> Decision {
        self.try_acquire(key, policy, cost, at).await.unwrap()
    }

    async fn peek(&self, key: &str, policy: &Policy, at: u64) -> Decision {
        self.limiter(policy).peek(key).at(time(at)).await.unwrap()
    }
}

fn time(at: u64) -> Timestamp {
    Timestamp::from_micros(START + at).unwrap()
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

/// A token bucket refills while it empties, so one window admits up to twice the limit minus one.
async fn no_window_holds_more_than_the_limit<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("10/1s");
    let mut admitted = Vec::new();
    // Three windows of requests in quick succession.
    for at in (0..3 * SECOND).step_by(20_000) {
        if tested.acquire("k", &limit, 1, at).await.allowed() {
            admitted.push(at);
        }
    }
    let most =
        admitted.iter().map(|&from| admitted.iter().filter(|&&at| at >= from && at - from < SECOND).count()).max();
    assert_eq!((admitted.len(), most), (30, Some(10)));
}

/// Fixed windows admit the limit just before a boundary, and again just after it.
async fn a_boundary_is_nothing_special<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("5/1s");
    for _ in 0..5 {
        assert!(tested.acquire("k", &limit, 1, 999_000).await.allowed());
    }
    assert!(!tested.acquire("k", &limit, 1, SECOND).await.allowed());
    assert!(!tested.acquire("k", &limit, 1, 1_998_999).await.allowed());
    assert!(tested.acquire("k", &limit, 1, 1_999_000).await.allowed());
}

/// Units multiplied by nanoseconds overflow 64 bits at 213,505 units per day.
async fn large_costs_do_not_wrap<S: WindowStore>(tested: Tested<S>) {
    let limit = Policy::from(Limit::per_day(1 << 52).unwrap());
    assert_eq!(tested.acquire("k", &limit, 213_505, 0).await.remaining(), (1 << 52) - 213_505);
    assert!(!tested.acquire("k", &limit, 1 << 52, 0).await.allowed());
    assert!(tested.acquire("k", &limit, (1 << 52) - 213_505, 0).await.allowed());
    assert_eq!(tested.acquire("k", &limit, 1, 0).await.remaining(), 0);
}

/// One free unit admits a request for a million units.
async fn the_last_unit_admits_one_unit<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("1000000/1s");
    assert!(tested.acquire("k", &limit, 999_999, 0).await.allowed());
    let denied = tested.acquire("k", &limit, 1_000_000, 0).await;
    assert_eq!((denied.allowed(), denied.remaining()), (false, 1));
    assert!(tested.acquire("k", &limit, 1, 0).await.allowed());
}

/// After an idle window, a request of any cost is admitted.
async fn an_idle_key_has_no_more_than_its_limit<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("10/1s");
    assert!(tested.acquire("k", &limit, 1, 0).await.allowed());
    let error = tested.try_acquire("k", &limit, 11, 10 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
    assert!(error.to_string().contains("11") && error.to_string().contains("10/1s"), "{error}");
    // A limiter that applies its burst tolerance twice admits 17 here.
    let mut allowed = 0;
    for _ in 0..30 {
        allowed += u32::from(tested.acquire("k", &limit, 1, 20 * SECOND).await.allowed());
    }
    assert_eq!(allowed, 10);
}

/// A limit per hour is forgotten after ten idle minutes.
async fn an_hour_is_an_hour<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("1/1h");
    assert!(tested.acquire("k", &limit, 1, 0).await.allowed());
    assert!(!tested.acquire("k", &limit, 1, 3600 * SECOND - 1).await.allowed());
    assert!(tested.acquire("k", &limit, 1, 3600 * SECOND).await.allowed());
}

/// A request exactly one window after the first is denied, with a retry-after of zero.
async fn a_denial_never_says_retry_now<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("2/1s");
    for at in [0, 500_000] {
        assert!(tested.acquire("k", &limit, 1, at).await.allowed());
    }
    for at in (500_000..SECOND).step_by(99_999).chain([SECOND - 1]) {
        let denied = tested.acquire("k", &limit, 1, at).await;
        assert_eq!(denied.retry_after(), Some(Duration::from_micros(SECOND - at)));
    }
    assert!(tested.acquire("k", &limit, 1, SECOND).await.allowed());
}

/// When the clock steps back, a subtraction underflows or a new window opens.
async fn a_clock_that_steps_back_frees_nothing<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("1/10s");
    assert!(tested.acquire("k", &limit, 1, 50 * SECOND).await.allowed());
    let denied = tested.acquire("k", &limit, 1, 0).await;
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(10)));
}

/// Requests with the same timestamp collide in one sorted-set member and count once.
async fn requests_of_one_instant_all_count<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("3/1s");
    let allowed: Vec<bool> = {
        let mut allowed = Vec::new();
        for _ in 0..5 {
            allowed.push(tested.acquire("k", &limit, 1, 0).await.allowed());
        }
        allowed
    };
    assert_eq!(allowed, [true, true, true, false, false]);
}

/// With several limits, a request that a later limit denies is still charged to the earlier ones.
async fn a_rejected_request_charges_no_limit<S: WindowStore>(tested: Tested<S>) {
    let both = policy("100/1m, 1/1s");
    for _ in 0..10 {
        let _ = tested.acquire("k", &both, 1, 0).await;
    }
    let used: Vec<u64> = tested.peek("k", &both, 0).await.limits().iter().map(LimitStatus::used).collect();
    assert_eq!(used, [1, 1]);
}

/// Denied requests keep a client locked out for as long as it retries. Here that happens only if the policy counts attempts.
async fn hammering_is_free_or_counted_as_the_policy_says<S: WindowStore>(tested: Tested<S>) {
    let (free, counted) = (policy("3/10s"), policy("3/10s").with_counting(Counting::Attempts));
    let mut allowed = [0, 0];
    for second in 0..60 {
        allowed[0] += u32::from(tested.acquire("free", &free, 1, second * SECOND).await.allowed());
        allowed[1] += u32::from(tested.acquire("counted", &counted, 1, second * SECOND).await.allowed());
    }
    assert_eq!(allowed, [18, 3]);
}

/// The time until reset is derived from the key's time-to-live, or from the oldest entry instead of the newest.
async fn reset_and_refill_are_those_of_the_log<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("5/10s");
    assert!(tested.acquire("k", &limit, 1, 0).await.allowed());
    let second = tested.acquire("k", &limit, 1, 4 * SECOND).await;
    assert_eq!((second.refill_after(), second.reset_after()), (Duration::from_secs(6), Duration::from_secs(10)));
    let later = tested.peek("k", &limit, 11 * SECOND).await;
    assert_eq!((later.refill_after(), later.reset_after()), (Duration::from_secs(3), Duration::from_secs(3)));
    let idle = tested.peek("k", &limit, 14 * SECOND).await;
    assert_eq!((idle.used(), idle.refill_after(), idle.reset_after()), (0, Duration::ZERO, Duration::ZERO));
}

/// A call is repeated because its response was lost, and counts twice.
async fn a_repeated_call_counts_once<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("3/1s");
    for _ in 0..5 {
        let decision = tested.limiter(&limit).acquire("k").id(7).at(time(0)).await.unwrap();
        assert_eq!((decision.allowed(), decision.used()), (true, 1));
    }
}

/// Resetting one key flushes the whole database.
async fn a_reset_frees_one_key<S: WindowStore>(tested: Tested<S>) {
    let limit = policy("1/1h");
    for key in ["a", "b"] {
        assert!(tested.acquire(key, &limit, 1, 0).await.allowed());
    }
    assert!(tested.limiter(&limit).reset("a").await.unwrap());
    assert!(!tested.limiter(&limit).reset("a").await.unwrap());
    assert!(tested.acquire("a", &limit, 1, 0).await.allowed());
    assert!(!tested.acquire("b", &limit, 1, 0).await.allowed());
}

/// Changing the policy of a key erases its history.
async fn a_changed_quota_keeps_the_history<S: WindowStore>(tested: Tested<S>) {
    let (silver, gold) = (policy("10/1m"), policy("100/1m"));
    for _ in 0..10 {
        assert!(tested.acquire("k", &silver, 1, 0).await.allowed());
    }
    assert_eq!(tested.acquire("k", &gold, 1, 0).await.used(), 11);
    assert!(!tested.acquire("k", &silver, 1, SECOND).await.allowed());
}

/// The check and the update are separate steps, so concurrent tasks all pass the check.
async fn racing_tasks_admit_the_limit<S: WindowStore>(tested: Tested<S>) {
    let store = tested.0;
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let tested = Tested(store.clone());
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..20 {
                    allowed += u32::from(tested.acquire("k", &policy("100/1m"), 1, 0).await.allowed());
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.unwrap();
    }
    assert_eq!(allowed, 100);
}

macro_rules! store_tests {
    ($store:ident: $($test:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let (store, _server) = super::$store().await;
            super::$test(super::Tested(std::sync::Arc::new(store))).await;
        }
    )*};
}

macro_rules! on {
    ($store:ident) => {
        store_tests!($store:
            no_window_holds_more_than_the_limit,
            a_boundary_is_nothing_special,
            large_costs_do_not_wrap,
            the_last_unit_admits_one_unit,
            an_idle_key_has_no_more_than_its_limit,
            an_hour_is_an_hour,
            a_denial_never_says_retry_now,
            a_clock_that_steps_back_frees_nothing,
            requests_of_one_instant_all_count,
            a_rejected_request_charges_no_limit,
            hammering_is_free_or_counted_as_the_policy_says,
            reset_and_refill_are_those_of_the_log,
            a_repeated_call_counts_once,
            a_reset_frees_one_key,
            a_changed_quota_keeps_the_history,
            racing_tasks_admit_the_limit,
        );
    };
}

#[cfg(feature = "memory")]
async fn memory() -> (limiter::MemoryStore, ()) {
    (limiter::MemoryStore::new(), ())
}

#[cfg(feature = "memory")]
mod in_memory {
    on!(memory);
}

#[cfg(feature = "redis")]
async fn redis() -> (limiter::RedisStore, limiter_testkit::server::Server) {
    let server = limiter_testkit::server::Server::start().unwrap();
    let patient = limiter::RedisStore::builder().response_timeout(Duration::from_secs(5));
    (patient.connect(&server.url()).await.unwrap(), server)
}

#[cfg(feature = "redis")]
mod in_redis {
    on!(redis);
}
