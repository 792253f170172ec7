//! Several operations in one call of a script: what is particular to Redis. The conformance suite tests what they decide.

use std::sync::Arc;

use limiter_core::request::{AllOf, joint};
use limiter_core::store::{Facts, JointOp, LogKey, Op, Outcome};
use limiter_core::{ErrorKind, Limiter, Policy, SharedStore, WindowStore, policy};
use testbed::server::Server;

use crate::support::{builder, calls, connect, run, search, send, shared_cluster};

const RULES: usize = 5;

fn keys(prefix: &str) -> Vec<String> {
    (0..RULES).map(|rule| format!("{prefix} {rule}")).collect()
}

fn acquires<'a>(keys: &'a [String], policy: &'a Policy) -> Vec<JointOp<'a>> {
    let acquire = |key| Op::acquire(key, policy).into();
    keys.iter().map(acquire).collect()
}

fn all_of<'a>(limiter: &'a Limiter, keys: &'a [String]) -> AllOf<'a> {
    let add = |all: AllOf<'a>, key| all.with(limiter.acquire(key));
    keys.iter().fold(AllOf::new(), add)
}

/// Applies operations that all succeed.
async fn apply_all(store: &impl WindowStore, ops: &[JointOp<'_>]) -> Vec<Facts> {
    let facts = store.apply_all(ops).await.unwrap().unwrap();
    facts.into_iter().map(Result::unwrap).collect()
}

async fn used(store: &impl WindowStore, key: &str) -> u64 {
    let peek = run(store, Op::peek(key, &policy!("1000/1h"))).await;
    peek.unwrap().used()
}

#[tokio::test]
async fn a_log_that_fails_fails_the_call_or_only_its_advisory_operation() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policy = policy!("9/1h");
    let keys = keys("k");
    let breaks = |name: &str| {
        let stored = store.redis_key(LogKey::new(name.into(), &keys[2]));
        server
            .command::<()>(&[&b"SET"[..], &stored, b"text"])
            .unwrap();
    };
    breaks("default");
    let mut ops = acquires(&keys, &policy);
    let error = store.apply_all(&ops).await.unwrap_err();
    let expected = (ErrorKind::Corrupt, Some(keys[2].as_bytes()));
    assert_eq!((error.kind(), error.key()), expected);
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
    // A decision over all of them peeks at the others, and does not charge any.
    breaks("search");
    let limiter = search(policy.clone(), Arc::new(store) as SharedStore);
    let mut all = joint::decide(all_of(&limiter, &keys)).await;
    let errors = joint::take_errors(&mut all);
    assert_eq!(errors[0].kind(), ErrorKind::Corrupt);
    assert_eq!(all.parts()[4].status().unwrap().used(), 0);
    assert_eq!(limiter.status(&keys[0]).await.unwrap().used(), 0);

    send(&server, "CONFIG SET maxmemory 1");
    let error = limiter
        .store()
        .apply_all(&acquires(&keys[..2], &policy))
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    send(&server, "CONFIG SET maxmemory 0");
    assert_eq!(used(limiter.store(), &keys[0]).await, 1, "all or none");
}

/// One script applies any number of operations.
#[tokio::test]
async fn hundreds_of_logs_change_together() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policy = policy!("1/1h");
    let keys: Vec<String> = (0..300).map(|rule| format!("rule {rule}")).collect();
    // The last log is new in the second call, and all others deny.
    for end in [299, 300] {
        assert_eq!(
            apply_all(&store, &acquires(&keys[..end], &policy))
                .await
                .len(),
            end
        );
        assert_eq!(used(&store, &keys[298]).await, 1);
    }
    assert_eq!(used(&store, &keys[299]).await, 0, "all or none");
}

#[tokio::test]
async fn logs_of_one_slot_go_together_in_a_cluster_and_others_one_by_one() {
    let cluster = shared_cluster();
    let tagged = builder().hash_tag(|key| key.split(|byte| *byte == b',').next().unwrap_or(key));
    let tagged: SharedStore = Arc::new(tagged.connect(&cluster.url()).await.unwrap());
    let plain: SharedStore = Arc::new(connect(&cluster.url()).await);
    let scripts = |node| calls(node).get("evalsha").copied().unwrap_or(0);
    let total = || cluster.nodes().iter().map(scripts).sum::<u64>();
    for (is_tagged, store) in [(true, tagged), (false, plain.clone())] {
        let limiter = Limiter::new("tenants", policy!("2/1h"), store);
        let keys: Vec<_> = (0..RULES)
            .map(|rule| format!("tenant {is_tagged},{rule}"))
            .collect();
        let all = async || all_of(&limiter, &keys).await.unwrap().is_denied();
        assert!(!all().await);
        let before = total();
        assert_eq!([all().await, all().await], [false, true]);
        let taken = total() - before;
        assert_eq!(taken == 2, is_tagged, "{taken} calls");
        for key in &keys {
            assert_eq!(limiter.status(key).await.unwrap().used(), 2);
        }
    }
    let policy = policy!("9/1h");
    let keys = keys("far apart");
    let facts = plain.apply_all(&acquires(&keys, &policy)).await.unwrap();
    assert!(facts.is_none(), "CROSSSLOT");
    assert_eq!(used(&plain, &keys[0]).await, 0);
}
