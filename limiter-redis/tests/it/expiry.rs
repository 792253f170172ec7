//! How long a key lives, and how seldom that is set. The conformance suite tests that it lives as long as its log counts.

use futures::future::join_all;
use limiter_core::store::{EntryId, LogKey, Op};
use limiter_core::{Name, Policy, WindowStore, policy};
use testbed::server::Server;

use crate::support::{at, calls, connect, db_size, reset_calls, run, ttl, until};

/// At the server's time, an eighth of the window longer at most; at a given time, a minute.
#[tokio::test]
async fn a_key_lives_little_longer_than_its_log_counts() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    for (limits, window) in [
        ("9999/2s", 2_000),
        ("9999/1h", 3_600_000),
        ("9999/60s~100ms", 60_000),
        ("9/1s, 9999/1h~1m", 3_600_000),
    ] {
        let policy: Policy = limits.parse().unwrap();
        let log = LogKey::new(Name::default(), limits);
        reset_calls(&server);
        for _ in 0..9 {
            assert!(
                run(&store, Op::acquire(limits, &policy))
                    .await
                    .unwrap()
                    .is_allowed()
            );
            let ttl = ttl(&server, &store, log);
            assert!(ttl <= window * 9 / 8 + 2, "{limits}: {ttl}");
        }
        let set = calls(&server)["pexpireat"];
        assert!(window < 60_000 || set < 9, "{limits}: set {set} times");
        let given = Op::acquire("given", &policy).at(at(0));
        let _ = run(&store, given).await.unwrap();
        let log = LogKey::new(Name::default(), "given");
        let ttl = ttl(&server, &store, log);
        let lives = window + 40_000..=window + 60_001;
        assert!(lives.contains(&ttl), "{limits}: {ttl} at a given time");
        assert!(store.reset(log).await.unwrap());
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
