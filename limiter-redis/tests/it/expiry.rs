//! Every key has a time to live: long enough for its log, and little longer.

use std::time::Instant;

use fastrand::Rng;
use futures::future::join_all;
use limiter_core::store::{EntryId, LogKey, Op, Settlement};
use limiter_core::{Name, Policy, WindowStore, policy};
use testbed::server::Server;

use crate::support::{at, calls, connect, db_size, run, ttl, until};

/// Not every append sets the time to live. It must be right after each, regardless of earlier appends and refunds: a shorter policy
/// must not let Redis forget what the limiter's own policy counts.
#[tokio::test]
async fn a_key_lives_as_long_as_its_log_counts() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let windows = [
        "30ms",
        "1s",
        "1001ms",
        "60s",
        "1h",
        "60s~100ms",
        "1s, 1000000/1h~1m",
    ];
    let policies = windows.map(|window| format!("1000000/{window}").parse::<Policy>().unwrap());
    let mut random = Rng::with_seed(11);
    let mut receipts = Vec::new();
    for n in 0..2_000_u128 {
        let log = LogKey::new(Name::default(), random.choice(["one", "other"]).unwrap());
        // Usually the same policy again.
        let other = if random.u8(..3) == 0 {
            random.usize(..7)
        } else {
            3 + (n / 500) as usize
        };
        let policy = &policies[other];
        let mut op = Op::acquire(log.key, policy).with_cost(random.u64(1..3));
        if random.u8(..4) == 0 {
            op = op.with_limiter_policy(random.choice(&policies).unwrap());
        }
        if random.u8(..8) == 0 && op.receipt_window().is_some() {
            op = op.with_id(n);
        }
        let begun = Instant::now();
        let decision = run(&store, op).await.unwrap();
        let ttl = ttl(&server, &store, log);
        let took = begun.elapsed().as_millis() as i64;
        // An eighth more at most. A log may have expired in the meantime.
        let window = |policy: &Policy| policy.longest_window().as_micros() as i64 / 1_000;
        let window = window(policy).max(op.limiter_policy.map_or(0, window));
        let lives = (window - took - 1..=window * 9 / 8 + 2).contains(&ttl);
        assert!(
            lives || ttl == -2 && window <= took,
            "{n}: {ttl} ms of {window}"
        );
        receipts.extend(decision.receipt().map(|receipt| (log, receipt)));
        // The newest entry, or the two newest.
        for _ in 0..random.u8(..3) {
            if let Some((log, receipt)) = receipts.pop() {
                let refund = Settlement::new(log, policy, receipt, 0);
                store.settle(refund).await.unwrap();
            }
        }
    }
    let set = || calls(&server)["pexpireat"];
    let begun = Instant::now();
    let before = set();
    for _ in 0..200 {
        assert!(
            run(&store, Op::acquire("third", &policies[3]))
                .await
                .unwrap()
                .is_allowed()
        );
    }
    // A cell of this window has 2 s.
    let most = 2 + begun.elapsed().as_secs();
    let set = set() - before;
    assert!((1..=most).contains(&set), "set {set} times by 200 appends");
    // At a given time, a minute more than the window.
    for (policy, window) in [(&policies[4], 3_600_000), (&policies[1], 1_000)] {
        store
            .reset(LogKey::new(Name::default(), "third"))
            .await
            .unwrap();
        let _ = run(&store, Op::acquire("third", policy).at(at(0)))
            .await
            .unwrap();
        let ttl = ttl(&server, &store, LogKey::new(Name::default(), "third"));
        assert!((window + 40_000..=window + 60_001).contains(&ttl), "{ttl}");
    }
}

/// The script drops thousands of entries. Meanwhile the window of the new one passes, and Redis removes the key.
#[tokio::test]
async fn an_append_that_outlasts_its_window_decides() {
    const ENTRIES: u64 = 20_000;
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let long = policy!("100000/1h");
    let short = policy!("3/1us");
    for id in [None, Some(7)] {
        let op = Op::record("k", &long);
        for first in (0..ENTRIES).step_by(1_000) {
            let record = |n| run(&store, op.with_id(u128::from(n)));
            for done in join_all((first..first + 1_000).map(record)).await {
                assert!(done.unwrap().appended());
            }
        }
        let mut op = Op::acquire("k", &short);
        op.id = id.map(EntryId::from_u128);
        let decision = run(&store, op).await.unwrap();
        assert!(
            decision.is_allowed() && decision.used() == 1,
            "{decision:?}"
        );
        until("the key expires", async || db_size(&server) == 0).await;
    }
}
