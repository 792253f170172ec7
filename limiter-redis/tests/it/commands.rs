//! What a decision makes the server do: one command, few commands in the script, no write unless something is appended.

use std::collections::BTreeMap;

use limiter_core::store::{LogKey, Op};
use limiter_core::{Counting, Limit, Limiter, Policy, policy};
use testbed::server::Server;

use crate::support::{at, calls, connect, limit, reset_calls, run, search, size};

#[tokio::test]
async fn a_decision_is_one_command() {
    let server = Server::start().unwrap();
    let limiter = search(policy!("5/1h, 50/1d"), connect(&server.url()).await);
    let gold = policy!("50/1s");
    assert!(limiter.acquire("warm").await.unwrap().is_allowed());
    let receipt = limiter
        .record("settled")
        .cost(3)
        .await
        .unwrap()
        .receipt()
        .unwrap();
    let settled = limiter.settle("settled", receipt, 2).await.unwrap();
    assert_eq!((settled.applied(), settled.status().used()), (true, 2));
    let before = calls(&server);
    for n in 0..300_u64 {
        let key = format!("k{}", n % 7);
        match n % 5 {
            0 => limiter
                .acquire(&key)
                .cost(1 + n % 5)
                .await
                .map(drop)
                .unwrap(),
            1 => limiter.status(&key).await.map(drop).unwrap(),
            2 => limiter.acquire(&key).policy(&gold).await.map(drop).unwrap(),
            3 => limiter.record(&key).cost(n).await.map(drop).unwrap(),
            _ => {
                assert_eq!(
                    limiter
                        .settle("settled", receipt, n)
                        .await
                        .unwrap()
                        .status()
                        .limits()[1]
                        .used(),
                    n.min(50)
                );
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
    let limiter = search(policy!("5/1h"), connect(&master.url()).await);
    let mark = || {
        let offset = master
            .info_number("replication", "master_repl_offset")
            .unwrap();
        (
            offset,
            master
                .info_number("persistence", "rdb_changes_since_last_save")
                .unwrap(),
        )
    };
    let empty = mark();
    for _ in 0..5 {
        assert!(limiter.acquire("k").await.unwrap().is_allowed());
    }
    let gone = limiter.record("gone").await.unwrap().receipt().unwrap();
    assert!(limiter.refund("gone", gone).await.unwrap().applied());
    let full = mark();
    assert!(
        full.0 > empty.0 && full.1 > empty.1,
        "what is admitted is replicated: {empty:?}, {full:?}"
    );
    for n in 0..size(2_000, 10_000) {
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
const SECOND: u64 = 1_000_000;

/// How often the scripts called each command.
fn script_calls(server: &Server) -> BTreeMap<String, u64> {
    let mut calls = calls(server);
    calls.retain(|name, _| {
        ["time", "pttl"].contains(&&**name) || name.starts_with('z') || name.starts_with("pexpire")
    });
    calls
}

/// Checks how often each command of the scripts was called since the last check.
#[track_caller]
fn expect(server: &Server, what: &str, expected: &[(&str, u64)]) {
    let mut found = script_calls(server);
    // At the server's time, one append in many sets the expiry.
    found.remove("pexpireat");
    let expected: BTreeMap<String, u64> = expected
        .iter()
        .map(|(name, n)| ((*name).to_owned(), *n))
        .collect();
    assert_eq!(found, expected, "{what}");
    reset_calls(server);
}

#[tokio::test]
async fn the_common_operations_take_few_commands() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let expect = |what: &str, expected: &[(&str, u64)]| expect(&server, what, expected);
    let one = Policy::from(Limit::new(CALLS, std::time::Duration::from_secs(3600)).unwrap());
    let attempts = one.clone().with_counting(Counting::Attempts);
    let two = policy!("100/1h, 1000/1d");
    // As many calls as fit, and then as many that do not.
    for (name, policy, cost, admitted, denied) in [
        (
            "acquires",
            &one,
            1,
            &[][..],
            &[("time", CALLS), ("zrange", CALLS)][..],
        ),
        (
            "five units each",
            &one,
            5,
            &[],
            &[("time", CALLS), ("zrange", 2 * CALLS)],
        ),
        (
            "two limits",
            &two,
            1,
            &[],
            &[("time", CALLS), ("zrange", CALLS)],
        ),
        (
            "attempts",
            &attempts,
            1,
            &[],
            &[
                ("time", CALLS),
                ("zrange", 2 * CALLS),
                ("zadd", CALLS),
                ("zremrangebyrank", CALLS),
            ],
        ),
        (
            "records",
            &one,
            1,
            &[],
            &[
                ("time", CALLS),
                ("zrange", 2 * CALLS),
                ("zadd", CALLS),
                ("zremrangebyrank", CALLS),
            ],
        ),
    ] {
        let n = CALLS / cost;
        let fits = async || {
            let op = match name {
                "records" => Op::record(name, policy),
                _ => Op::acquire(name, policy),
            };
            run(&store, op.with_cost(cost)).await.unwrap().fits()
        };
        for _ in 0..n {
            assert!(fits().await);
        }
        expect(
            name,
            &[&[("time", n), ("zrange", n), ("zadd", n)], admitted].concat(),
        );
        for _ in 0..CALLS {
            assert!(!fits().await);
        }
        expect(&format!("{name}, denied"), denied);
    }

    // As many units in a window as there are, and one more each time.
    let policy = Policy::from(limit(CALLS, 10));
    for time in 0..10 + CALLS {
        if time == 10 {
            reset_calls(&server);
        }
        let decision = run(&store, Op::acquire("steady", &policy).at(at(time)))
            .await
            .unwrap();
        assert_eq!(decision.used(), 10.min(time + 1));
    }
    let steady = [
        ("zrange", 2 * CALLS),
        ("zadd", CALLS),
        ("zremrangebyrank", CALLS),
        ("pexpire", CALLS),
    ];
    expect("steady", &steady);
}

/// With its own policy, an operation takes a command more, to read the oldest entries, and one for each window that those do not cover.
#[tokio::test]
async fn operations_under_another_policy_take_few_commands() {
    let server = Server::start().unwrap();
    let expect = |what: &str, expected: &[(&str, u64)]| expect(&server, what, expected);
    let (gold, long) = (policy!("50/10us"), policy!("3/10us, 100/100us"));
    let limiter = search(long, connect(&server.url()).await);
    let acquire = async |key, time| {
        let decision = limiter
            .acquire(key)
            .policy(&gold)
            .at(at(time))
            .await
            .unwrap();
        assert!(decision.is_allowed(), "{key}, {time}");
        decision.used()
    };
    for n in 0..2 * CALLS {
        match n {
            10 => reset_calls(&server),
            CALLS => {
                let n = CALLS - 10;
                expect(
                    "growing",
                    &[
                        ("zrange", n),
                        ("zrangebylex", 3 * n - 2),
                        ("zadd", n),
                        ("pexpire", n),
                    ],
                );
            }
            _ => {}
        }
        assert_eq!(acquire("k", n).await, 10.min(n + 1));
    }
    // From then on, an entry leaves the longest window with each new one.
    let n = CALLS;
    let leaving = [
        ("zrange", n),
        ("zrangebylex", 3 * n),
        ("zadd", n),
        ("zremrangebylex", n),
        ("pexpire", n),
    ];
    expect("one leaves the longest window", &leaving);

    // Two in a microsecond: what the limiter's policy can see, the newest 100, is half as long as its window.
    for n in 2 * CALLS..5 * CALLS {
        if n == 4 * CALLS {
            reset_calls(&server);
        }
        acquire("two", n / 2).await;
    }
    let above = [
        ("zrange", n),
        ("zrangebylex", 3 * n),
        ("zadd", n),
        ("zremrangebylex", n),
        ("pexpire", n),
    ];
    expect("one is above the largest maximum", &above);
    let log = limiter
        .store()
        .inspect(LogKey::new(limiter.name(), "two"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((log.entries, log.cost), (100, 100));
}

/// A new entry replaces the newest one in its cell.
#[tokio::test]
async fn an_acquire_that_merges_takes_few_commands() {
    let server = Server::start().unwrap();
    let (coarse, store) = (policy!("1000/1h~1h"), connect(&server.url()).await);
    let limiter = search(coarse, store);
    for n in 0..=2 * CALLS {
        // The entry is that of the newest admitted acquire.
        let decision = limiter
            .acquire("k")
            .cost(1000 / CALLS)
            .at(at(n))
            .await
            .unwrap();
        assert_eq!(
            (decision.is_allowed(), decision.refill_after().as_micros()),
            (
                n < CALLS,
                3_600_000_000 - u128::from(n.saturating_sub(CALLS - 1))
            )
        );
        match n {
            0 => reset_calls(&server),
            n if n == CALLS - 1 => {
                let n = CALLS - 1;
                expect(
                    &server,
                    "merging",
                    &[
                        ("zrange", n),
                        ("zadd", n),
                        ("zremrangebylex", n),
                        ("pexpire", n),
                    ],
                );
            }
            _ => {}
        }
    }
    expect(&server, "denied", &[("zrange", 2 * (CALLS + 1))]);
}

/// Entries that leave an exact limit's window merge for the other limit: one or several with each append.
#[tokio::test]
async fn an_exact_limit_and_one_with_a_resolution_take_few_commands() {
    let server = Server::start().unwrap();
    let limiter = search(
        policy!("1000/1s, 1000000/1h~1m"),
        connect(&server.url()).await,
    );
    for (key, leaving) in [("one", 1), ("three", 3)] {
        // As many entries at each time as leave the window.
        for n in 0..3 * CALLS {
            if n == CALLS + 1 {
                reset_calls(&server);
            }
            for _ in 0..leaving {
                let decision = limiter
                    .acquire(key)
                    .at(at(n * SECOND / CALLS))
                    .await
                    .unwrap();
                assert!(
                    decision.is_allowed() && decision.limits()[0].used() <= leaving * CALLS,
                    "{key}, {n}"
                );
            }
        }
        let (n, all) = (2 * CALLS - 1, leaving * (2 * CALLS - 1));
        // Where several leave at the same time, one more search finds the first of the cell.
        let merging = [
            ("zrange", all),
            ("zrangebylex", all),
            ("zrevrangebylex", if leaving == 1 { n } else { 2 * n }),
            ("zadd", all),
            ("zremrangebylex", n),
            ("pexpire", all),
        ];
        expect(&server, key, &merging);
        let log = limiter
            .store()
            .inspect(LogKey::new(limiter.name(), key))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (log.entries, log.cost),
            (leaving * CALLS + 1, 3 * leaving * CALLS),
            "{key}"
        );
    }
}

/// A settlement of the newest entry reads and writes a few entries, regardless of the log's length.
#[tokio::test]
async fn a_settlement_of_the_newest_entry_takes_few_commands() {
    let server = Server::start().unwrap();
    let limiter = Limiter::new(
        "search",
        policy!("1000000/1h, 2000000/1d"),
        connect(&server.url()).await,
    );
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
            assert!(settled.applied() && settled.status().at() >= receipt.at());
            assert!(
                settled
                    .status()
                    .limits()
                    .iter()
                    .all(|limit| limit.used() == entries - 1 + cost)
            );
        }
        let calls = script_calls(&server);
        assert_eq!(
            (calls["zadd"], calls["zrem"]),
            (CALLS, CALLS),
            "one entry is rewritten"
        );
        assert_eq!(calls["zrangebylex"], 2 * CALLS, "one search finds it");
        // The newest entry, the one to rewrite, and afterwards the newest and the two oldest.
        assert!(
            calls["zrange"] <= 5 * CALLS && calls.values().sum::<u64>() <= 12 * CALLS,
            "{calls:?}"
        );

        let mut refunds = 0;
        for _ in 0..CALLS {
            let receipt = limiter.acquire(&key).await.unwrap().receipt().unwrap();
            reset_calls(&server);
            assert!(limiter.refund(&key, receipt).await.unwrap().applied());
            refunds += script_calls(&server).values().sum::<u64>();
        }
        assert!(refunds <= 15 * CALLS, "{refunds} commands");
    }
    let last = limiter.record("last").await.unwrap().receipt().unwrap();
    assert!(limiter.refund("last", last).await.unwrap().applied());
    assert_eq!(
        server.command::<i64>(&["DBSIZE"]).unwrap(),
        2,
        "a log without entries is no key"
    );
}
