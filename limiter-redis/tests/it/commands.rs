//! What a decision makes the server do: one command, few commands in the script, no write unless something is appended.

use limiter_core::policy;
use testbed::server::Server;

use crate::support::{calls, limited, reset_calls};

#[tokio::test]
async fn a_decision_is_one_command() {
    let server = Server::start().unwrap();
    let limiter = limited(&server, policy!("5/1h, 50/1d")).await;
    let gold = policy!("50/1s");
    assert!(limiter.acquire("warm").await.unwrap().is_allowed());
    let recorded = limiter.record("settled").cost(3).await.unwrap();
    let receipt = recorded.receipt().unwrap();
    let settled = limiter.settle("settled", receipt, 2).await.unwrap();
    assert_eq!((settled.applied(), settled.status().used()), (true, 2));
    let before = calls(&server);
    for n in 0..300_u64 {
        let key = format!("k{}", n % 7);
        match n % 5 {
            0 => limiter.acquire(&key).await.map(drop).unwrap(),
            1 => limiter.status(&key).await.map(drop).unwrap(),
            2 => limiter.acquire(&key).policy(&gold).await.map(drop).unwrap(),
            3 => limiter.record(&key).cost(n).await.map(drop).unwrap(),
            _ => {
                let settled = limiter.settle("settled", receipt, n).await.unwrap();
                assert_eq!(settled.status().limits()[1].used(), n.min(50));
            }
        }
    }
    let after = calls(&server);
    assert_eq!(after["evalsha"] - before["evalsha"], 300);
    assert_eq!(after["eval"], 2, "the text of each script was sent once");
}

#[tokio::test]
async fn denials_and_peeks_write_nothing() {
    // Pings would also be replicated.
    let master = Server::start_with(&["--repl-ping-replica-period", "3600"]).unwrap();
    let _replica = master.start_replica().unwrap();
    let limiter = limited(&master, policy!("5/1h")).await;
    let marks = [
        ("replication", "master_repl_offset"),
        ("persistence", "rdb_changes_since_last_save"),
    ];
    let mark = || marks.map(|(section, name)| master.info_number(section, name).unwrap());
    let empty = mark();
    for _ in 0..5 {
        assert!(limiter.acquire("k").await.unwrap().is_allowed());
    }
    let gone = limiter.record("gone").await.unwrap().receipt().unwrap();
    assert!(limiter.refund("gone", gone).await.unwrap().applied());
    let full = mark();
    assert!(
        full[0] > empty[0] && full[1] > empty[1],
        "{empty:?}, {full:?}"
    );
    for n in 0..2_000 {
        assert!(!limiter.acquire("k").await.unwrap().is_allowed());
        if n % 10 == 0 {
            assert_eq!(limiter.peek("k").await.unwrap().used(), 5);
            assert_eq!(limiter.status("k").await.unwrap().used(), 5);
            assert!(!limiter.refund("gone", gone).await.unwrap().applied());
        }
    }
    assert_eq!(mark(), full);
}

const CALLS: u64 = 100;

/// Returns how often scripts called each command since the last time, without one that few appends call at the server's time.
fn script_calls(server: &Server) -> String {
    let mut calls = calls(server);
    calls.retain(|name, _| name.starts_with('z') || ["time", "pttl", "pexpire"].contains(&&**name));
    reset_calls(server);
    let calls: Vec<_> = calls
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    calls.join(", ")
}

/// A settlement of the newest entry reads and writes a few entries, regardless of the log's length: the newest entry, the one to
/// rewrite, and afterwards the newest and the two oldest.
#[tokio::test]
async fn a_settlement_of_the_newest_entry_takes_few_commands() {
    let server = Server::start().unwrap();
    let limiter = limited(&server, policy!("1000000/1h, 2000000/1d")).await;
    for entries in [2, 500] {
        let key = format!("log of {entries}");
        for _ in 1..entries {
            assert!(limiter.acquire(&key).await.unwrap().is_allowed());
        }
        let receipt = limiter.acquire(&key).await.unwrap().receipt().unwrap();
        assert!(limiter.settle(&key, receipt, 2).await.unwrap().applied());
        reset_calls(&server);
        for cost in 3..3 + CALLS {
            let settled = limiter.settle(&key, receipt, cost).await.unwrap();
            assert!(settled.applied());
            assert_eq!(settled.status().limits()[1].used(), entries - 1 + cost);
        }
        let settles =
            "time 100, zadd 100, zcard 100, zrange 300, zrangebylex 200, zrank 100, zrem 100";
        assert_eq!(script_calls(&server), settles);
        for _ in 0..CALLS {
            let receipt = limiter.acquire(&key).await.unwrap().receipt().unwrap();
            assert!(limiter.refund(&key, receipt).await.unwrap().applied());
        }
        // The first refund also marks the entry before it.
        let refunds =
            "time 200, zadd 101, zcard 100, zrange 500, zrangebylex 300, zrank 100, zrem 101";
        assert_eq!(script_calls(&server), refunds);
    }
}
