//! Several operations in one call of a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use limiter_core::request::AllOf;
use limiter_core::store::{JointOp, LogKey, Op, Outcome};
use limiter_core::{Counting, ErrorKind, Limiter, Name, Policy, SharedStore, WindowStore, policy};
use redis::aio::ConnectionLike;
use testbed::server::Server;
use testbed::{Network, Proxy};

use crate::support::{Hooked, builder, calls, connect, run, search, shared_cluster};

const RULES: usize = 5;

fn keys(prefix: &str) -> Vec<String> {
    (0..RULES).map(|rule| format!("{prefix} {rule}")).collect()
}

fn acquires<'a>(keys: &'a [String], policy: &'a Policy) -> Vec<JointOp<'a>> {
    keys.iter()
        .map(|key| Op::acquire(key, policy).into())
        .collect()
}

async fn used(store: &impl WindowStore, key: &str) -> u64 {
    run(store, Op::peek(key, &policy!("1000/1h")))
        .await
        .unwrap()
        .used()
}

/// Prints the time of five rules compared with that of one behind a network of 3 ms.
#[tokio::test]
async fn five_rules_take_one_round_trip() {
    let server = Server::start().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).unwrap();
    let [near, far] = [server.url(), format!("redis://{}", proxy.address())]
        .map(|url| async move { connect(&url).await });
    let (near, far): (_, SharedStore) = (near.await, Arc::new(far.await));
    proxy.set(Network::Latency(Duration::from_millis(3)));
    let (roomy, full) = (policy!("1000000/1h"), policy!("1/1h"));
    for (name, policy) in [("admitted", &roomy), ("denied", &full)] {
        let keys = keys(name);
        let _ = run(
            &near,
            Op::acquire(&keys[RULES - 1], policy).with_name(Name::new("rule")),
        )
        .await
        .unwrap();
        let limiter = Limiter::new("rule", policy.clone(), far.clone());
        let mut best = [Duration::MAX; 2];
        for turn in 0..20 {
            let rules = if turn % 2 == 0 {
                &keys[RULES - 1..]
            } else {
                &keys[..]
            };
            let all = rules
                .iter()
                .fold(AllOf::new(), |all, key| all.with(limiter.acquire(key)));
            let began = Instant::now();
            assert_eq!(!all.await.unwrap().is_denied(), name == "admitted");
            best[turn % 2] = best[turn % 2].min(began.elapsed());
        }
        println!(
            "{name}: one rule {:?}, five rules {:?}: {:.2}",
            best[0],
            best[1],
            best[1].div_duration_f64(best[0])
        );
    }
}

/// One tenant's own rule denies all it asks for, while another asks for what the shared rule has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_whose_own_rule_denies_takes_nothing_of_a_shared_rule() {
    const MAX: u64 = 300;
    let server = Server::start().unwrap();
    let store: SharedStore = Arc::new(connect(&server.url()).await);
    let shared = Limiter::new("shared", policy!("300/1h"), store.clone());
    let own = Limiter::new("own", policy!("1/1h"), store);
    assert!(own.acquire("hammers").await.unwrap().is_allowed());
    let (over, denied) = (AtomicBool::new(false), AtomicU64::new(0));
    let hammer = async || {
        while !over.load(Ordering::Relaxed) {
            assert!(
                AllOf::new()
                    .with(shared.acquire("all"))
                    .with(own.acquire("hammers"))
                    .await
                    .unwrap()
                    .is_denied()
            );
            denied.fetch_add(1, Ordering::Relaxed);
        }
    };
    let other = async {
        for n in 0..MAX {
            let key = format!("other {n}");
            let both = AllOf::new()
                .with(shared.acquire("all"))
                .with(own.acquire(&key));
            let both = both.await.unwrap();
            assert!(!both.is_denied(), "denied after {n} of {MAX}: {both:?}");
        }
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(other, join_all((0..8).map(|_| hammer())));
    assert!(denied.load(Ordering::Relaxed) > 0);
    assert_eq!(shared.status("all").await.unwrap().used(), MAX);
}

#[tokio::test]
async fn a_log_that_fails_fails_the_call_or_only_its_advisory_operation() {
    let server = Server::start().unwrap();
    let (store, policy, keys) = (connect(&server.url()).await, policy!("9/1h"), keys("k"));
    let broken = store.redis_key(LogKey::new(Name::default(), &keys[2]));
    server
        .command::<()>(&[b"SET".as_slice(), &broken, b"text"])
        .unwrap();
    let mut ops = acquires(&keys, &policy);
    let error = store.apply_all(&ops).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::Corrupt, Some(keys[2].as_bytes()))
    );
    assert!(!error.to_string().contains(&keys[2]), "{error}");
    assert_eq!(used(&store, &keys[0]).await, 0, "all or none");

    ops[2].is_advisory = true;
    let facts = store.apply_all(&ops).await.unwrap().unwrap();
    for (number, facts) in facts.iter().enumerate() {
        match facts {
            Ok(facts) => assert!(matches!(facts.outcome, Outcome::Appended(_)) && number != 2),
            Err(error) => assert_eq!((error.kind(), number), (ErrorKind::Corrupt, 2)),
        }
    }
    // A decision over all of them fails with this limiter's name, peeks at the others, and does not charge any.
    let limiter = search(policy.clone(), Arc::new(store) as SharedStore);
    let all = keys
        .iter()
        .fold(AllOf::new(), |all, key| all.with(limiter.acquire(key)));
    let search_key = limiter
        .store()
        .reset(LogKey::new(limiter.name(), &keys[2]))
        .await;
    assert!(!search_key.unwrap());
    let stored = [b"limiter:1:{search:".as_slice(), keys[2].as_bytes(), b"}"].concat();
    server
        .command::<()>(&[b"SET".as_slice(), &stored, b"text"])
        .unwrap();
    let mut all = all.decide().await;
    assert_eq!(all.take_error().unwrap().kind(), ErrorKind::Corrupt);
    assert_eq!(all.parts()[4].status().unwrap().used(), 0);
    assert_eq!(limiter.status(&keys[0]).await.unwrap().used(), 0);

    server
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let error = limiter
        .store()
        .apply_all(&acquires(&keys[..2], &policy))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server
        .command::<()>(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
    assert_eq!(used(limiter.store(), &keys[0]).await, 1, "all or none");
}

#[tokio::test]
async fn a_repetition_after_a_lost_reply_finds_all() {
    let server = Server::start().unwrap();
    let lost = Arc::new(AtomicU64::new(0));
    let loses = Arc::clone(&lost);
    let connection = Hooked::connect(&server, move |inner, cmd| {
        let loses = Arc::clone(&loses);
        Box::pin(async move {
            let reply = inner.req_packed_command(cmd).await?;
            if loses.fetch_sub(1, Ordering::Relaxed) == 1 {
                return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
            }
            Ok(reply)
        })
    });
    let store = builder().with_connection(connection.await).unwrap();
    let (policy, keys, full) = (
        policy!("9/1h"),
        keys("k"),
        policy!("1/1h").with_counting(Counting::Attempts),
    );
    store
        .apply_all(&acquires(&keys, &policy))
        .await
        .unwrap()
        .unwrap();
    lost.store(1, Ordering::Relaxed);
    let facts = store
        .apply_all(&acquires(&keys, &policy))
        .await
        .unwrap()
        .unwrap();
    assert!(
        facts
            .iter()
            .all(|facts| matches!(facts.as_ref().unwrap().outcome, Outcome::Repeated(_))),
        "{facts:?}"
    );
    assert_eq!(used(&store, &keys[0]).await, 2);
    // The first denying limiter has counted its attempt.
    let mut ops = acquires(&keys, &policy);
    ops[3] = Op::acquire(&keys[3], &full)
        .with_limiter_policy(&policy)
        .into();
    lost.store(1, Ordering::Relaxed);
    let facts = store.apply_all(&ops).await.unwrap().unwrap();
    assert!(
        matches!(facts[3].as_ref().unwrap().outcome, Outcome::Repeated(_))
            && facts[4].as_ref().unwrap().admitted
    );
    assert_eq!(
        [used(&store, &keys[0]).await, used(&store, &keys[3]).await],
        [2, 3]
    );
}

/// Between the first attempt, which the second log denied, and the repetition, the first log becomes full.
#[tokio::test]
async fn a_repetition_counts_no_second_attempt() {
    let server = Server::start().unwrap();
    let policy = policy!("1/1h").with_counting(Counting::Attempts);
    let keys = ["first".to_owned(), "second".to_owned()];
    let others = Arc::new(connect(&server.url()).await);
    let (loses, fills) = (Arc::new(AtomicBool::new(false)), others.clone());
    let (lost, full) = (loses.clone(), policy.clone());
    let connection = Hooked::connect(&server, move |inner, cmd| {
        let (fills, full, loses) = (fills.clone(), full.clone(), lost.clone());
        Box::pin(async move {
            let reply = inner.req_packed_command(cmd).await?;
            if loses.swap(false, Ordering::Relaxed) {
                let _ = run(&fills, Op::acquire("first", &full)).await.unwrap();
                return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
            }
            Ok(reply)
        })
    });
    let store = builder().with_connection(connection.await).unwrap();
    let _ = run(&store, Op::acquire("second", &policy)).await.unwrap();
    loses.store(true, Ordering::Relaxed);
    let facts = store
        .apply_all(&acquires(&keys, &policy))
        .await
        .unwrap()
        .unwrap();
    let outcomes: Vec<_> = facts
        .iter()
        .map(|facts| facts.as_ref().unwrap().outcome)
        .collect();
    assert!(
        matches!(outcomes[..], [Outcome::Nothing, Outcome::Repeated(_)]),
        "{outcomes:?}"
    );
    for (key, used) in [("first", 1), ("second", 1)] {
        assert_eq!(self::used(&others, key).await, used, "{key}");
    }
}

/// One script applies any number of operations.
#[tokio::test]
async fn hundreds_of_logs_change_together() {
    let server = Server::start().unwrap();
    let (store, policy) = (connect(&server.url()).await, policy!("1/1h"));
    let keys: Vec<String> = (0..300).map(|rule| format!("rule {rule}")).collect();
    for (end, used) in [(299, 1), (300, 1)] {
        // The last log is new in the second call, and all others deny.
        let facts = store
            .apply_all(&acquires(&keys[..end], &policy))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(facts.len(), end);
        assert!(facts.iter().all(Result::is_ok));
        assert_eq!(self::used(&store, &keys[298]).await, used);
    }
    assert_eq!(self::used(&store, &keys[299]).await, 0, "all or none");
}

#[tokio::test]
async fn logs_of_one_slot_go_together_in_a_cluster_and_others_one_by_one() {
    let cluster = shared_cluster();
    let tagged = builder().hash_tag(|key| key.split(|byte| *byte == b',').next().unwrap_or(key));
    let stores: [SharedStore; 2] = [
        Arc::new(tagged.connect(&cluster.url()).await.unwrap()),
        Arc::new(connect(&cluster.url()).await),
    ];
    for (is_tagged, store) in [true, false].into_iter().zip(stores) {
        let limiter = Limiter::new("tenants", policy!("2/1h"), store.clone());
        let keys: Vec<(String, u32)> = (0..RULES as u32)
            .map(|rule| (format!("tenant {is_tagged}"), rule))
            .collect();
        let total = || {
            cluster
                .nodes()
                .iter()
                .map(|node| calls(node).get("evalsha").copied().unwrap_or(0))
                .sum::<u64>()
        };
        let all = || {
            keys.iter().fold(AllOf::new(), |all, key| {
                all.with(limiter.acquire((&key.0, key.1)))
            })
        };
        assert!(!all().await.unwrap().is_denied());
        let before = total();
        assert!(!all().await.unwrap().is_denied());
        assert!(all().await.unwrap().is_denied());
        let taken = total() - before;
        assert_eq!(taken == 2, is_tagged, "{taken} calls");
        for key in &keys {
            assert_eq!(limiter.status((&key.0, key.1)).await.unwrap().used(), 2);
        }
    }
    // A slot of which some keys are at another node.
    let store = connect(&cluster.url()).await;
    let (policy, keys) = (policy!("9/1h"), keys("far apart"));
    assert!(
        store
            .apply_all(&acquires(&keys, &policy))
            .await
            .unwrap()
            .is_none(),
        "CROSSSLOT"
    );
    assert_eq!(used(&store, &keys[0]).await, 0);
}
