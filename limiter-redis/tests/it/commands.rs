//! What a decision makes the server do: one command, few commands in the script, no write unless something is appended.

use limiter_core::store::Op;
use limiter_core::{Counting, Policy, policy};
use testbed::server::Server;

use crate::support::{at, calls, connect, limited, reset_calls, run};

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

#[tokio::test]
async fn the_common_operations_take_few_commands() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let one = policy!("100/1h");
    let attempts = one.clone().with_counting(Counting::Attempts);
    let two = policy!("100/1h, 1000/1d");
    let replaces = "time 100, zadd 100, zrange 200, zremrangebyrank 100";
    // As many calls as fit, and then a hundred that do not.
    for (name, policy, cost, denied) in [
        ("acquires", &one, 1, "time 100, zrange 100"),
        ("five units each", &one, 5, "time 100, zrange 200"),
        ("two limits", &two, 1, "time 100, zrange 100"),
        ("attempts", &attempts, 1, replaces),
        ("records", &one, 1, replaces),
    ] {
        let n = CALLS / cost;
        let fits = async || {
            let op = match name {
                "records" => Op::record(name, policy),
                _ => Op::acquire(name, policy),
            };
            run(&store, op.with_cost(cost)).await.unwrap().fits()
        };
        reset_calls(&server);
        for _ in 0..n {
            assert!(fits().await);
        }
        let admitted = format!("time {n}, zadd {n}, zrange {n}");
        assert_eq!(script_calls(&server), admitted, "{name}");
        for _ in 0..CALLS {
            assert!(!fits().await);
        }
        assert_eq!(script_calls(&server), denied, "{name}, denied");
    }
}

/// The policies of the operation and of its limiter, how many come at each of how many times, how long these lie apart, from which time
/// on a hundred of them count, and the commands.
const APPENDS: &str = "
    own policy  | 100/10us             | 100/10us             | 1 | 1     | 10  | pexpire 100, zadd 100, zrange 200, zremrangebyrank 100
    by time     | 50/10us              | 3/10us, 100/100us    | 1 | 1     | 100 | pexpire 100, zadd 100, zrange 100, zrangebylex 300, zremrangebylex 100
    by cost     | 50/10us              | 3/10us, 100/100us    | 2 | 1     | 100 | pexpire 200, zadd 200, zrange 200, zrangebylex 600, zremrangebylex 200
    merging     | 1000/1h~1h           | 1000/1h~1h           | 1 | 1     | 1   | pexpire 100, zadd 100, zrange 100, zremrangebylex 100
    one leaves  | 1000/1s, 1000000/1h~1m | 1000/1s, 1000000/1h~1m | 1 | 10000 | 101 | pexpire 100, zadd 100, zrange 100, zrangebylex 100, zremrangebylex 100, zrevrangebylex 100
    three leave | 1000/1s, 1000000/1h~1m | 1000/1s, 1000000/1h~1m | 3 | 10000 | 101 | pexpire 300, zadd 300, zrange 300, zrangebylex 300, zremrangebylex 100, zrevrangebylex 200
";

/// With its own policy, an operation takes a command more, to read the oldest entries, and one for each window that those do not
/// cover. An entry that merges replaces the newest one in its cell. Entries that leave an exact limit's window merge for the other
/// limit: where several leave at the same time, one more search finds the first of the cell.
#[tokio::test]
async fn appends_to_sliding_logs_take_few_commands() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let rows = APPENDS
        .lines()
        .skip(1)
        .map(|row| row.split('|').map(str::trim));
    for row in rows.map(Iterator::collect::<Vec<_>>) {
        let [name, own, default, in_each, step, from, expected] = row[..] else {
            panic!("{row:?}")
        };
        let [own, default] = [own, default].map(|policy| policy.parse::<Policy>().unwrap());
        let [in_each, step, from] = [in_each, step, from].map(|n| n.parse::<u64>().unwrap());
        for n in 0..from + CALLS {
            if n == from {
                reset_calls(&server);
            }
            for _ in 0..in_each {
                let op = Op::acquire(name, &own).with_limiter_policy(&default);
                let decision = run(&store, op.at(at(n * step))).await.unwrap();
                assert!(decision.is_allowed(), "{name}, {n}");
            }
        }
        assert_eq!(script_calls(&server), expected, "{name}");
    }
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
