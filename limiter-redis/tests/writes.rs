//! What a decision makes the server do: one command, no write unless something is appended, a time to live for every key, and
//! nothing left once the windows have passed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use limiter_core::store::{LogKey, Op, Settlement};
use limiter_core::{Counting, Limit, Limiter, Name, Policy, Timestamp, WindowStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;

use common::{connect, random_below, run};

mod common;

/// How often clients called a command.
fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.info("commandstats").unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_decision_is_one_command() {
    let server = Server::start().unwrap();
    let limiter = Limiter::new("search", policy!("5/1h, 50/1d"), connect(&server.url()).await);
    let gold = policy!("50/1s");
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    let before = calls(&server, "evalsha");
    for n in 0..300_u64 {
        let key = format!("k{}", n % 7);
        match n % 4 {
            0 => limiter.acquire(&key).cost(1 + n % 5).await.map(drop).unwrap(),
            1 => limiter.status(&key).await.map(drop).unwrap(),
            2 => limiter.acquire(&key).policy(&gold).await.map(drop).unwrap(),
            _ => limiter.record(&key).cost(n).await.map(drop).unwrap(),
        }
    }
    assert_eq!(calls(&server, "evalsha") - before, 300);
    assert_eq!(calls(&server, "eval"), 1, "the script's text was sent once");

    // A settlement too, with its answer.
    let receipt = limiter.record("settled").cost(3).await.unwrap().receipt().unwrap();
    let settled = limiter.settle("settled", receipt, 2).await.unwrap();
    assert_eq!((settled.applied(), settled.status().used()), (true, 2));
    let before = calls(&server, "evalsha");
    for n in 1..=50 {
        assert_eq!(limiter.settle("settled", receipt, n).await.unwrap().status().limits()[1].used(), n);
    }
    assert_eq!(calls(&server, "evalsha") - before, 50);
    assert_eq!(calls(&server, "eval"), 2);
}

#[tokio::test]
async fn denials_and_peeks_write_nothing() {
    let master = Server::start().unwrap();
    let _replica = master.start_replica().unwrap();
    let limiter = Limiter::new("search", policy!("5/1h"), connect(&master.url()).await);
    let mark = || {
        let offset = master.info_number("replication", "master_repl_offset").unwrap();
        (offset, master.info_number("persistence", "rdb_changes_since_last_save").unwrap())
    };
    master.command(&["CONFIG", "SET", "repl-ping-replica-period", "3600"]).unwrap();
    let empty = mark();
    for _ in 0..5 {
        assert!(limiter.acquire("k").await.unwrap().allowed());
    }
    let gone = limiter.record("gone").await.unwrap().receipt().unwrap();
    assert!(limiter.refund("gone", gone).await.unwrap().applied());
    let full = mark();
    assert!(full.0 > empty.0 && full.1 > empty.1, "what is admitted is replicated: {empty:?}, {full:?}");
    // A ping that was on its way when the period was set may still arrive.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let before = mark();
    for n in 0..10_000 {
        let denied = limiter.acquire("k").await.unwrap();
        assert!(!denied.allowed());
        if n % 10 == 0 {
            assert_eq!(limiter.peek("k").await.unwrap().used(), 5);
            assert_eq!(limiter.status("k").await.unwrap().used(), 5);
            assert!(!limiter.refund("gone", gone).await.unwrap().applied());
        }
    }
    assert_eq!(mark(), before);
}

#[tokio::test]
async fn every_key_expires_and_nothing_stays() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policies = [policy!("3/300ms"), policy!("2/100ms, 3/400ms").with_counting(Counting::Attempts)];
    let mut random = 7_u64;
    for n in 0..3_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (key, policy) = (format!("k{}", (random >> 33) % 50), &policies[(random >> 40) as usize % 2]);
        let mut op = Op::acquire(&key, policy).with_cost(1 + (random >> 45) % 2);
        if n % 3 == 0 {
            op = op.with_id(u128::from(random >> 50));
        }
        if n % 2 == 0 {
            op = op.with_limiter_policy(&policies[0]);
        }
        let decision = run(&store, op).await.unwrap();
        if let Some(receipt) = decision.receipt().filter(|_| n % 5 == 0) {
            let settlement = Settlement::new(op.log, policy, receipt, random >> 60);
            store.settle(settlement).await.unwrap().verify(&settlement).unwrap();
        }
        if n % 500 == 0 {
            for k in 0..50 {
                // -1 is a key without a time to live; -2 is none.
                assert_ne!(ttl(&server, &store, LogKey::new(Name::default(), &format!("k{k}"))), -1);
            }
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.command(&["DBSIZE"]).unwrap().int() > 0 {
        assert!(Instant::now() < deadline, "keys stay");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // At given times too, a minute later.
    let op = Op::acquire("given", &policies[0]).at(Timestamp::from_micros(1).unwrap());
    store.apply(op).await.unwrap();
    let ttl = ttl(&server, &store, op.log);
    assert!((1..=61_000).contains(&ttl), "{ttl}");
}

/// A key's time to live in milliseconds.
fn ttl(server: &Server, store: &RedisStore, log: LogKey<'_>) -> i64 {
    server.command(&[b"PTTL".as_slice(), &store.redis_key(log)]).unwrap().int()
}

/// Not every append sets the time to live. It must be long enough after each, whatever was appended or refunded before.
#[tokio::test]
async fn a_key_lives_as_long_as_its_log_counts() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policies = [30, 1_000, 1_001, 60_000, 3_600_000].map(|millis| {
        let window = Duration::from_millis(millis);
        (window, Policy::from(Limit::new(1_000_000, window).unwrap()))
    });
    let mut random = random_below(11);
    let mut pick = |below: usize| random(below as u64) as usize;
    let mut receipts = Vec::new();
    for n in 0..2_000_u128 {
        let log = LogKey::new(Name::default(), ["one", "other"][pick(2)]);
        // Mostly the same policy again.
        let same = 3 + usize::from(n > 1_000);
        let (window, policy) = &policies[if pick(3) == 0 { pick(policies.len()) } else { same }];
        let mut op = Op::acquire(log.key, policy).with_cost(1 + pick(2) as u64);
        if pick(8) == 0 {
            op = op.with_id(n);
        }
        let mut longest = *window;
        if pick(4) == 0 {
            let (window, default) = &policies[pick(policies.len())];
            op = op.with_limiter_policy(default);
            longest = longest.max(*window);
        }
        let begun = Instant::now();
        let decision = run(&store, op).await.unwrap();
        let ttl = ttl(&server, &store, log);
        let least = i64::try_from(longest.saturating_sub(begun.elapsed()).as_millis()).unwrap() - 1;
        // A log may have expired in the meantime.
        assert!(ttl >= least || (least < 0 && ttl == -2), "{n}: {ttl} ms, expected at least {least} ms");
        assert_ne!(ttl, -1);
        receipts.push((log, decision.receipt().unwrap()));
        // The newest entry, or the two newest.
        for _ in 0..pick(3) {
            if let Some((log, receipt)) = receipts.pop() {
                store.settle(Settlement::new(log, policy, receipt, 0)).await.unwrap();
            }
        }
    }
    let before = calls(&server, "pexpireat");
    for _ in 0..200 {
        assert!(run(&store, Op::acquire("third", &policies[3].1)).await.unwrap().allowed());
    }
    let set = calls(&server, "pexpireat") - before;
    assert!((1..=5).contains(&set), "set {set} times by 200 appends");
}

/// An operation under a shorter policy must not let Redis forget what the limiter's own policy counts.
#[tokio::test]
async fn a_key_lives_by_the_longer_window_of_the_operation_and_its_limiter() {
    const HOUR: i64 = 3_600_000;
    let server = Server::start().unwrap();
    let limiter = Limiter::new("search", policy!("3/1s, 100/1h"), connect(&server.url()).await);
    let ttl = |key: &str| ttl(&server, limiter.store(), LogKey::new(limiter.name(), key));
    let short = policy!("50/1s");
    let receipt = limiter.acquire("new").policy(&short).await.unwrap().receipt().unwrap();
    assert_eq!(receipt.window(), limiter.policy().longest_window());
    assert!((HOUR - 5_000..=HOUR * 9 / 8).contains(&ttl("new")), "{}", ttl("new"));

    for (key, id) in [("old", None), ("old with an id", Some(7_u128))] {
        assert!(limiter.acquire(key).await.unwrap().allowed());
        for n in 0..20 {
            let request = limiter.record(key).policy(&short).cost(1 + n % 2);
            let decision = match id {
                Some(id) => request.id(id + u128::from(n)).await.unwrap(),
                None => request.await.unwrap(),
            };
            assert!(decision.receipt().is_some());
        }
        assert!((HOUR - 5_000..=HOUR * 9 / 8).contains(&ttl(key)), "{key}: {}", ttl(key));
        assert_eq!(limiter.status(key).await.unwrap().limits()[1].used(), 31, "{key}");
    }

    // A day's policy through a limiter of an hour keeps the day.
    let day = policy!("1000/1d");
    assert!(limiter.acquire("day").policy(&day).await.unwrap().allowed());
    assert!((24 * HOUR - 5_000..=27 * HOUR).contains(&ttl("day")), "{}", ttl("day"));

    // At a given time, too.
    let at = Timestamp::from_micros(1_000_000).unwrap();
    assert!(limiter.acquire("given").policy(&short).at(at).await.unwrap().allowed());
    assert!((HOUR + 55_000..=HOUR + 60_000).contains(&ttl("given")), "{}", ttl("given"));
}

/// The commands inside the scripts since the last reset, and how often each was called.
fn inside(server: &Server) -> BTreeMap<String, u64> {
    let stats = server.info("commandstats").unwrap();
    let commands = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        let ours = ["time", "pexpire", "pttl"].contains(&name) || name.starts_with('z');
        ours.then(|| (name.to_owned(), calls))
    });
    commands.collect()
}

#[track_caller]
fn expect(server: &Server, what: &str, expected: &[(&str, u64)]) {
    let expected: BTreeMap<String, u64> = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    assert_eq!(inside(server), expected, "{what}");
    reset(server);
}

fn reset(server: &Server) {
    assert_eq!(server.command(&["CONFIG", "RESETSTAT"]).unwrap().text(), "OK");
}

const CALLS: u64 = 100;

#[tokio::test]
async fn the_common_operations_take_few_commands() {
    let server = Server::start().unwrap();
    let limiter = Limiter::new("search", Limit::per_hour(CALLS).unwrap(), connect(&server.url()).await);
    let expect = |what: &str, expected: &[(&str, u64)]| expect(&server, what, expected);
    for _ in 0..CALLS {
        assert!(limiter.acquire("k").await.unwrap().allowed());
    }
    expect("growing", &[("time", CALLS), ("zrange", CALLS), ("zadd", CALLS)]);
    for _ in 0..CALLS {
        assert!(!limiter.acquire("k").await.unwrap().allowed());
    }
    expect("denied", &[("time", CALLS), ("zrange", CALLS)]);

    for _ in 0..CALLS / 5 {
        assert!(limiter.acquire("fives").cost(5).await.unwrap().allowed());
    }
    reset(&server);
    for _ in 0..CALLS {
        assert!(!limiter.acquire("fives").cost(5).await.unwrap().allowed());
    }
    expect("denied, five units each", &[("time", CALLS), ("zrange", 2 * CALLS)]);

    let two = policy!("100/1h, 1000/1d");
    for _ in 0..CALLS {
        assert!(limiter.acquire("two").policy(&two).await.unwrap().allowed());
    }
    expect("two limits", &[("time", CALLS), ("zrange", CALLS), ("zadd", CALLS)]);

    // As many units in a window as there are, and one more each time.
    let policy = Policy::from(Limit::new(CALLS, Duration::from_micros(10)).unwrap());
    let acquire = async |at| {
        let op = Op::acquire("steady", &policy).at(Timestamp::from_micros(at).unwrap());
        run(limiter.store(), op).await.unwrap()
    };
    for at in 0..10 {
        assert!(acquire(at).await.allowed());
    }
    reset(&server);
    for at in 10..10 + CALLS {
        assert_eq!(acquire(at).await.used(), 10);
    }
    let steady = [("zrange", 2 * CALLS), ("zadd", CALLS), ("zremrangebyrank", CALLS), ("pexpire", CALLS)];
    expect("steady", &steady);
}

/// Under another policy, an operation takes as many commands as under the limiter's, and those that it needs to find what
/// the limiter's keeps.
#[tokio::test]
async fn operations_under_another_policy_take_few_commands() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let expect = |what: &str, expected: &[(&str, u64)]| expect(&server, what, expected);
    let at = |at| Timestamp::from_micros(1_000_000 + at).unwrap();
    let (gold, long) = (policy!("50/10us"), policy!("3/10us, 100/100us"));
    let limiter = Limiter::new("search", long, store);
    let acquire = async |n: u64| {
        let decision = limiter.acquire("k").policy(&gold).at(at(n)).await.unwrap();
        assert_eq!((decision.allowed(), decision.used()), (true, 10), "{n}");
    };
    for n in 0..10 {
        assert!(limiter.acquire("k").policy(&gold).at(at(n)).await.unwrap().allowed());
    }
    reset(&server);
    for n in 10..CALLS {
        acquire(n).await;
    }
    let n = CALLS - 10;
    expect("growing", &[("zrange", n), ("zrangebylex", n), ("zadd", n), ("pexpire", n)]);
    // From here on, an entry leaves the longest window with each new one.
    for n in CALLS..2 * CALLS {
        acquire(n).await;
    }
    let n = CALLS;
    let leaving = [("zrange", 2 * n), ("zrangebylex", n), ("zadd", n), ("zremrangebyrank", n), ("pexpire", n)];
    expect("one leaves the longest window", &leaving);

    // Two in a microsecond: what the limiter's policy can see, the newest 100, is half as long as its window.
    for n in 2 * CALLS..4 * CALLS {
        assert!(limiter.acquire("two").policy(&gold).at(at(n / 2)).await.unwrap().allowed());
    }
    reset(&server);
    for n in 4 * CALLS..5 * CALLS {
        assert!(limiter.acquire("two").policy(&gold).at(at(n / 2)).await.unwrap().allowed());
    }
    expect("one is beyond the largest maximum", &leaving);
    let log = limiter.store().inspect(LogKey::new(limiter.name(), "two")).await.unwrap().unwrap();
    assert_eq!((log.entries, log.cost), (100, 100));
}

/// A settlement of the newest entry reads and writes a few entries, however many there are.
#[tokio::test]
async fn a_settlement_of_the_newest_entry_takes_few_commands() {
    let server = Server::start().unwrap();
    let limiter = Limiter::new("search", policy!("1000000/1h, 2000000/1d"), connect(&server.url()).await);
    for entries in [2, 500] {
        let key = format!("log of {entries}");
        for _ in 1..entries {
            assert!(limiter.acquire(&key).await.unwrap().allowed());
        }
        let receipt = limiter.acquire(&key).await.unwrap().receipt().unwrap();
        assert!(limiter.settle(&key, receipt, 2).await.unwrap().applied());
        reset(&server);
        for cost in 3..3 + CALLS {
            let settled = limiter.settle(&key, receipt, cost).await.unwrap();
            assert!(settled.applied());
            assert!(settled.status().limits().iter().all(|limit| limit.used() == entries - 1 + cost));
        }
        let calls = inside(&server);
        println!("{entries} entries: {calls:?}");
        assert_eq!((calls["zadd"], calls["zrem"]), (CALLS, CALLS), "one entry is rewritten");
        assert_eq!(calls["zrangebylex"], CALLS, "one search finds it");
        // The newest entry, the one to rewrite, the oldest, and afterwards the newest and the two oldest.
        assert!(calls["zrange"] <= 5 * CALLS && calls.values().sum::<u64>() <= 12 * CALLS, "{calls:?}");

        let mut refunds = BTreeMap::<String, u64>::new();
        for _ in 0..CALLS {
            let receipt = limiter.acquire(&key).await.unwrap().receipt().unwrap();
            reset(&server);
            assert!(limiter.refund(&key, receipt).await.unwrap().applied());
            for (name, calls) in inside(&server) {
                *refunds.entry(name).or_default() += calls;
            }
        }
        println!("{entries} entries: {refunds:?}");
        assert!(refunds.values().sum::<u64>() <= 15 * CALLS, "{refunds:?}");
    }
}
