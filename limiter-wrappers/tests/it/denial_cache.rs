//! The denial cache never denies late, never admits early, and asks the store no more than it must.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::faulty::{Does, Faulty};
use limiter_core::store::{Op, attempt};
use limiter_core::{Counting, Limiter, SharedStore, policy};
use limiter_memory::MemoryStore;
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;
use limiter_wrappers::DenialCache;
use testbed::test_all;

#[tokio::test]
async fn a_repeated_denial_needs_no_call_until_a_unit_frees() {
    let faulty = Faulty::default();
    let cache = DenialCache::new(faulty.clone(), 10);
    let limiter = Limiter::new("t", policy!("2/1h"), cache.clone());
    assert!(limiter.acquire("key").cost(2).await.unwrap().allowed());
    let first = limiter.acquire("key").await.unwrap();
    let calls = faulty.calls();
    let mut last = first.clone();
    for _ in 0..1000 {
        let again = limiter.acquire("key").await.unwrap();
        assert!(!again.allowed() && again.at() >= last.at() && again.retry_after() <= last.retry_after());
        assert_eq!((again.used(), again.remaining()), (first.used(), first.remaining()));
        let end = |decision: &limiter_core::Decision| {
            decision.at().as_micros() + decision.retry_after().unwrap().as_micros() as u64
        };
        assert_eq!(end(&again), end(&first));
        last = again;
    }
    assert_eq!((faulty.calls(), cache.len()), (calls, 1));
    assert!(attempt(limiter.store(), Op::acquire("key", limiter.policy()).with_name(limiter.name())).is_some());
    // Another cost, policy, verb, id or key is another question.
    let gold = policy!("9/1h");
    assert!(!limiter.acquire("key").cost(2).await.unwrap().allowed());
    assert!(limiter.acquire("key").policy(&gold).await.unwrap().allowed());
    assert!(!limiter.peek("key").await.unwrap().allowed());
    assert!(!limiter.acquire("key").idempotency_key(7_u128).await.unwrap().allowed());
    assert!(limiter.acquire("other").await.unwrap().allowed());
    assert_eq!(faulty.calls(), calls + 5);
}

/// Over a store that needs a future, and over one that answers at once.
#[tokio::test]
async fn a_change_through_the_wrapper_shows_at_once() {
    let stores = || -> [SharedStore; 2] { [Arc::new(Faulty::default()), Arc::new(MemoryStore::new())] };
    for (policy, store) in [policy!("2/1h"), policy!("2/1h~1m")]
        .into_iter()
        .flat_map(|policy| stores().map(|store| (policy.clone(), store)))
    {
        let limiter = Limiter::new("t", policy, DenialCache::new(store, 10));
        let receipt = limiter.acquire("key").cost(2).idempotency_key(1).await.unwrap().receipt().unwrap();
        let allowed = async || limiter.acquire("key").await.unwrap().allowed();
        assert!(!allowed().await);
        assert!(limiter.settle("key", receipt, 1).await.unwrap().applied());
        assert!(allowed().await && !allowed().await);
        assert!(limiter.refund("key", receipt).await.unwrap().applied());
        assert!(allowed().await && !allowed().await);
        limiter.reset("key").await.unwrap();
        assert!(limiter.acquire("key").cost(2).await.unwrap().allowed() && !allowed().await);
        let denied = limiter.peek("key").await.unwrap();
        assert_eq!((denied.allowed(), denied.used()), (false, 2));
        // A record changes what a looser policy shows.
        let gold = policy!("9/1h");
        assert!(!limiter.peek("key").policy(&gold).cost(8).await.unwrap().allowed());
        assert!(!limiter.record("key").cost(3).await.unwrap().allowed());
        assert_eq!(limiter.peek("key").policy(&gold).cost(8).await.unwrap().used(), 3);
        assert!(!allowed().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_another_process_unblocks_is_denied_for_a_second() {
    let faulty = Faulty::default();
    for (max_age, stays_denied) in [(None, 1), (Some(Duration::from_secs(5)), 5), (Some(Duration::MAX), 3600)] {
        let mut cache = DenialCache::new(faulty.clone(), 10);
        if let Some(max_age) = max_age {
            cache = cache.max_age(max_age);
        }
        let limiter = Limiter::new("t", policy!("1/30d"), cache);
        let other = Limiter::new("t", policy!("1/30d"), faulty.clone());
        let _ = limiter.acquire("key").await.unwrap();
        assert!(!limiter.acquire("key").await.unwrap().allowed());
        assert!(other.reset("key").await.unwrap());
        tokio::time::advance(Duration::from_secs(stays_denied) - Duration::from_millis(1)).await;
        assert!(!limiter.acquire("key").await.unwrap().allowed());
        if max_age != Some(Duration::MAX) {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(limiter.acquire("key").await.unwrap().allowed());
        }
    }
}

#[tokio::test]
async fn what_may_change_any_time_is_not_cached() {
    let faulty = Faulty::default();
    let attempts = policy!("1/1h").with_counting(Counting::Attempts);
    let limiter = Limiter::new("t", attempts, DenialCache::new(faulty.clone(), 10));
    for calls in 1..10 {
        assert_eq!(limiter.acquire("key").await.unwrap().allowed(), calls == 1);
        assert_eq!(faulty.calls(), calls);
    }
}

#[tokio::test]
async fn known_denials_go_on_during_an_outage() {
    let faulty = Faulty::default();
    let limiter = Limiter::new("t", policy!("1/1h"), DenialCache::new(faulty.clone(), 10));
    assert!(limiter.acquire("key").await.unwrap().allowed());
    assert!(!limiter.acquire("key").await.unwrap().allowed());
    faulty.set(Does::Refuse);
    assert!(!limiter.acquire("key").await.unwrap().allowed());
    assert!(limiter.acquire("other").await.is_err());
}

#[tokio::test]
async fn the_bound_holds_and_expired_denials_make_room() {
    let faulty = Faulty::default();
    let cache = DenialCache::new(faulty.clone(), 3);
    let limiter = Limiter::new("t", policy!("1/100ms"), cache.clone());
    for key in 0..10 {
        assert!(limiter.acquire(key).await.unwrap().allowed());
        let _ = limiter.acquire(key).await.unwrap();
        assert!(cache.len() <= 3);
    }
    tokio::time::sleep(Duration::from_millis(110)).await;
    assert!(limiter.acquire("new").await.unwrap().allowed());
    assert!(!limiter.acquire("new").await.unwrap().allowed());
    assert_eq!(cache.len(), 1);
}

/// Denied requests on one key: 100,000 in two seconds, or a million in ten with `LIMITER_TEST_ALL`. No window admits more than its
/// maximum, freed units are admitted again, and Redis is asked again only once a unit is free, or is known to be taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_reaches_redis_about_as_often_as_units_free() {
    const MAX: u64 = 10;
    const TASKS: u64 = 8;
    let (length, denials) = if test_all() { (10, 1_000_000) } else { (2, 100_000) };
    let length = Duration::from_secs(length);
    let server = Server::start().unwrap();
    let redis = RedisStore::builder().response_timeout(Duration::from_secs(20)).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new("t", policy!("10/1s"), DenialCache::new(Arc::new(redis), 10));
    let start = Instant::now();
    let flood = |limiter: Limiter<_>| async move {
        let (mut admitted, mut denied) = (Vec::new(), 0_u64);
        while start.elapsed() < length || denied < denials / TASKS {
            for _ in 0..100 {
                let decision = limiter.acquire("key").await.unwrap();
                if decision.allowed() {
                    admitted.push(decision.at().as_micros());
                } else {
                    denied += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (admitted, denied)
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(flood(limiter.clone()))).collect();
    let (mut admitted, mut denied) = (Vec::new(), 0);
    for task in tasks {
        let (some, more) = task.await.unwrap();
        admitted.extend(some);
        denied += more;
    }
    let seconds = start.elapsed().as_secs();
    admitted.sort_unstable();
    assert!(admitted.windows(11).all(|window| window[10] - window[0] >= 1_000_000), "more than 10 within a second");
    let expected = MAX * seconds;
    assert!(admitted.len() as u64 >= expected * 3 / 4, "{} admitted of {expected} that were free", admitted.len());
    let calls = calls_of(&server);
    // Each unit that frees costs every task at most one call that finds it free or taken, and one denial to cache.
    let most = 2 * TASKS * MAX * (seconds + 1);
    println!("{denied} denied and {} admitted with {calls} calls in {seconds} s", admitted.len());
    assert!(denied >= denials && calls <= most, "{denied} denied with {calls} calls, {most} allowed");
}

/// Returns how many scripts the server has run.
fn calls_of(server: &Server) -> u64 {
    let stats = server.info("commandstats").unwrap();
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap()
}
