//! Bugs of other limiters, taken from their sources and bug reports. None occurs here, in memory or in Redis.
//!
//! `known_bugs.txt` has those that a trace shows. The doc comment of each other test describes its bug.

use std::sync::Arc;

use exact_limiter::store::Mode;
use exact_limiter::time::Timestamp;
use exact_limiter::{ErrorKind, LimitStatus, Limiter, SharedStore, policy};
use limiter_testkit::golden::{RowAnswer, parse};

const SECOND: u64 = 1_000_000;

/// Returns the stores under test, and what they need.
async fn stores() -> Vec<(SharedStore, Box<dyn std::any::Any>)> {
    let mut stores: Vec<(SharedStore, Box<dyn std::any::Any>)> = Vec::new();
    #[cfg(feature = "memory")]
    stores.push((Arc::new(exact_limiter::MemoryStore::new()), Box::new(())));
    #[cfg(feature = "redis")]
    {
        let server = limiter_testkit::server::Server::start().unwrap();
        let patient = exact_limiter::RedisStore::builder().response_timeout(std::time::Duration::from_secs(5));
        stores.push((Arc::new(patient.connect(&server.url()).await.unwrap()), Box::new(server)));
    }
    stores
}

/// Returns the time that is this many microseconds after an arbitrary one.
fn time(at: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000 * SECOND + at).unwrap()
}

#[tokio::test]
async fn the_traces_show_no_bug() {
    let traces = parse(include_str!("known_bugs.txt"));
    let rows: usize = traces.iter().map(|trace| trace.rows.len()).sum();
    assert_eq!((traces.len(), rows), (13, 113), "the others cannot be parsed");
    for (store, _server) in stores().await {
        for trace in &traces {
            let limiter = Limiter::new(trace.name, trace.policy().unwrap(), store.clone());
            for row in trace.rows {
                let own = row.own_policy().unwrap();
                let policy = own.as_ref().unwrap_or(limiter.policy());
                let decision = match row.mode {
                    Mode::Peek => limiter.peek("k").policy(policy).cost(row.cost).at(time(row.at)).await,
                    _ => limiter.acquire("k").policy(policy).cost(row.cost).at(time(row.at)).await,
                };
                let Some(expected) = row.answer else {
                    let error = decision.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
                    let named =
                        [row.cost.to_string(), policy.to_string()].iter().all(|part| error.to_string().contains(part));
                    assert!(named, "{error}");
                    continue;
                };
                let decision = decision.unwrap();
                assert_eq!(RowAnswer::from(&decision), expected, "{}: {row:?}", trace.name);
                let used: Vec<u64> = decision.limits().iter().map(LimitStatus::used).collect();
                assert!(row.used_each.is_empty() || used == row.used_each, "{}: {row:?}: {used:?}", trace.name);
            }
        }
    }
}

/// A token bucket refills while it empties, so one window admits up to twice the limit minus one.
#[tokio::test]
async fn no_window_holds_more_than_the_limit() {
    for (store, _server) in stores().await {
        let limiter = Limiter::new("window", policy!("10/1s"), store);
        let mut admitted = Vec::new();
        // Three windows of requests in quick succession.
        for at in (0..3 * SECOND).step_by(20_000) {
            if limiter.acquire("k").at(time(at)).await.unwrap().allowed() {
                admitted.push(at);
            }
        }
        let within = |from| admitted.iter().filter(|&&at| at >= from && at - from < SECOND).count();
        assert_eq!((admitted.len(), admitted.iter().map(|&from| within(from)).max()), (30, Some(10)));
    }
}

/// A call is repeated because its response was lost, and counts twice.
#[tokio::test]
async fn a_repeated_call_counts_once() {
    for (store, _server) in stores().await {
        let limiter = Limiter::new("repeated", policy!("3/1s"), store);
        for _ in 0..5 {
            let decision = limiter.acquire("k").idempotency_key(7).at(time(0)).await.unwrap();
            assert_eq!((decision.allowed(), decision.used()), (true, 1));
        }
    }
}

/// Resetting one key flushes the whole database.
#[tokio::test]
async fn a_reset_frees_one_key() {
    for (store, _server) in stores().await {
        let limiter = Limiter::new("reset", policy!("1/1h"), store);
        let allowed = async |key| limiter.acquire(key).at(time(0)).await.unwrap().allowed();
        assert!(allowed("a").await && allowed("b").await);
        assert!(limiter.reset("a").await.unwrap() && !limiter.reset("a").await.unwrap());
        assert!(allowed("a").await && !allowed("b").await);
    }
}

/// The check and the update are separate steps, so concurrent tasks all pass the check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_tasks_admit_the_limit() {
    for (store, _server) in stores().await {
        let limiter = Limiter::new("race", policy!("100/1m"), store);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let mut allowed = 0;
                for _ in 0..20 {
                    allowed += u32::from(limiter.acquire("k").at(time(0)).await.unwrap().allowed());
                }
                allowed
            });
        }
        assert_eq!(tasks.join_all().await.iter().sum::<u32>(), 100);
    }
}
