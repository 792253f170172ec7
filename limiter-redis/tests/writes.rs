//! What a decision costs the server: one command, no write where nothing is admitted, no key without a time-to-live,
//! and nothing left when the windows have passed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use limiter_core::{Counting, Limit, Limiter, Op, Policy, Timestamp, WindowStore};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;

async fn store(server: &Server) -> RedisStore {
    RedisStore::builder().response_timeout(Duration::from_secs(10)).connect(&server.url()).await.unwrap()
}

/// How many commands of this name were called by clients.
fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.info("commandstats").unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_decision_is_one_command() {
    let server = Server::start().unwrap();
    let limiter = Limiter::new(store(&server).await, "5/1h, 50/1d".parse::<Policy>().unwrap());
    assert!(limiter.acquire("warm").await.unwrap().allowed());
    let before = calls(&server, "evalsha");
    for n in 0..300_u64 {
        let key = format!("k{}", n % 7);
        match n % 3 {
            0 => limiter.acquire_n(&key, 1 + n % 4).await.map(drop).unwrap(),
            1 => limiter.peek(&key).await.map(drop).unwrap(),
            _ => limiter.record(&key, n).await.map(drop).unwrap(),
        }
    }
    assert_eq!(calls(&server, "evalsha") - before, 300);
    assert_eq!(calls(&server, "eval"), 1, "the script came along once");
}

#[tokio::test]
async fn denials_and_peeks_write_nothing() {
    let master = Server::start().unwrap();
    let _replica = master.start_replica().unwrap();
    let limiter = Limiter::new(store(&master).await, Limit::per_hour(5).unwrap());
    let mark = || {
        let offset = master.info_number("replication", "master_repl_offset").unwrap();
        (offset, master.info_number("persistence", "rdb_changes_since_last_save").unwrap())
    };
    master.command(&["CONFIG", "SET", "repl-ping-replica-period", "3600"]).unwrap();
    let empty = mark();
    for _ in 0..5 {
        assert!(limiter.acquire("k").await.unwrap().allowed());
    }
    let full = mark();
    assert!(full.0 > empty.0 && full.1 > empty.1, "what is admitted is replicated: {empty:?}, {full:?}");
    // A ping that was under way when the period was set may still come.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let before = mark();
    for n in 0..10_000 {
        let denied = limiter.acquire("k").await.unwrap();
        assert!(!denied.allowed());
        if n % 10 == 0 {
            assert_eq!(limiter.peek("k").await.unwrap().used(), 5);
        }
    }
    assert_eq!(mark(), before);
}

#[tokio::test]
async fn every_key_expires_and_nothing_stays() {
    let server = Server::start().unwrap();
    let store = store(&server).await;
    let policies = [
        Policy::from(Limit::new(3, Duration::from_millis(300)).unwrap()),
        "2/100ms, 3/400ms".parse::<Policy>().unwrap().counting(Counting::Attempts),
    ];
    let limiter = Limiter::new(store, policies[0].clone());
    let mut random = 7_u64;
    for n in 0..3_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (key, policy) = (format!("k{}", (random >> 33) % 50), &policies[(random >> 40) as usize % 2]);
        let mut op = Op::acquire(&key, policy).cost(1 + (random >> 45) % 2);
        if n % 3 == 0 {
            op = op.id(u128::from(random >> 50));
        }
        let decision = limiter.run(op).await.unwrap();
        if let Some(receipt) = decision.receipt().filter(|_| n % 5 == 0) {
            limiter.settle(&key, receipt, random >> 60).await.unwrap();
        }
        if n % 500 == 0 {
            for stored in (0..50).map(|k| limiter.store().redis_key(format!("k{k}"))) {
                // -1 is a key for ever; -2 is none.
                assert_ne!(server.command(&[b"PTTL".as_slice(), &stored]).unwrap().int(), -1);
            }
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.command(&["DBSIZE"]).unwrap().int() > 0 {
        assert!(Instant::now() < deadline, "keys stay");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // At given times too, with the slack of a minute.
    let op = Op::acquire("given", &policies[0]).at(Timestamp::from_micros(1).unwrap());
    limiter.store().apply(op).await.unwrap();
    let ttl = server.command(&[b"PTTL".as_slice(), &limiter.store().redis_key("given")]).unwrap().int();
    assert!((1..=61_000).contains(&ttl), "{ttl}");
}

/// The time-to-live is not set by every append; it must be long enough after each, whoever appended or was refunded before.
#[tokio::test]
async fn a_key_lives_as_long_as_its_log_counts() {
    let server = Server::start().unwrap();
    let limiter = Limiter::new(store(&server).await, Limit::per_second(1).unwrap());
    let policies = [30, 1_000, 1_001, 60_000, 3_600_000].map(|millis| {
        let window = Duration::from_millis(millis);
        (window, Policy::from(Limit::new(1_000_000, window).unwrap()))
    });
    let mut random = 11_u64;
    let mut pick = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % below
    };
    let mut receipts = Vec::new();
    for n in 0..2_000_u128 {
        let key = ["one", "other"][pick(2)];
        let stored = limiter.store().redis_key(key);
        // Mostly the same policy again.
        let (window, policy) = &policies[if pick(3) == 0 { pick(policies.len()) } else { 3 + usize::from(n > 1_000) }];
        let mut op = Op::acquire(key, policy).cost(1 + pick(2) as u64);
        if pick(8) == 0 {
            op = op.id(n);
        }
        let begun = Instant::now();
        let decision = limiter.run(op).await.unwrap();
        let ttl = server.command(&[b"PTTL".as_slice(), &stored]).unwrap().int();
        let least = i64::try_from(window.saturating_sub(begun.elapsed()).as_millis()).unwrap() - 1;
        // What has expired meanwhile is gone.
        assert!(ttl >= least || (least < 0 && ttl == -2), "{n}: {ttl} ms, expected at least {least} ms");
        assert_ne!(ttl, -1);
        receipts.push((key, decision.receipt().unwrap()));
        // The newest, or with it the one before, too.
        for _ in 0..pick(3) {
            if let Some((key, receipt)) = receipts.pop() {
                limiter.refund(key, receipt).await.unwrap();
            }
        }
    }
    let before = calls(&server, "pexpireat");
    for _ in 0..200 {
        assert!(limiter.run(Op::acquire("third", &policies[3].1)).await.unwrap().allowed());
    }
    let set = calls(&server, "pexpireat") - before;
    assert!((1..=5).contains(&set), "set {set} times by 200 appends");
}

/// The commands inside the scripts since the last reset, and how often each was called.
fn inside(server: &Server) -> BTreeMap<String, u64> {
    let stats = server.info("commandstats").unwrap();
    let commands = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        let ours = ["time", "pexpire"].contains(&name) || name.starts_with('z');
        ours.then(|| (name.to_owned(), calls))
    });
    commands.collect()
}

#[tokio::test]
async fn the_common_operations_take_few_commands() {
    const CALLS: u64 = 100;
    let server = Server::start().unwrap();
    let limiter = Limiter::new(store(&server).await, Limit::per_hour(CALLS).unwrap());
    let expect = |what: &str, expected: &[(&str, u64)]| {
        let expected: BTreeMap<String, u64> = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        assert_eq!(inside(&server), expected, "{what}");
        server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    };
    for _ in 0..CALLS {
        assert!(limiter.acquire("k").await.unwrap().allowed());
    }
    expect("growing", &[("time", CALLS), ("zrange", CALLS), ("zadd", CALLS)]);
    for _ in 0..CALLS {
        assert!(!limiter.acquire("k").await.unwrap().allowed());
    }
    expect("denied", &[("time", CALLS), ("zrange", CALLS)]);

    for _ in 0..CALLS / 5 {
        assert!(limiter.acquire_n("fives", 5).await.unwrap().allowed());
    }
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    for _ in 0..CALLS {
        assert!(!limiter.acquire_n("fives", 5).await.unwrap().allowed());
    }
    expect("denied, five units each", &[("time", CALLS), ("zrange", 2 * CALLS)]);

    let two: Policy = "100/1h, 1000/1d".parse().unwrap();
    for _ in 0..CALLS {
        assert!(limiter.run(Op::acquire("two", &two)).await.unwrap().allowed());
    }
    expect("two limits", &[("time", CALLS), ("zrange", CALLS), ("zadd", CALLS)]);

    // As many units in a window as there are, and one more each time.
    let policy = Policy::from(Limit::new(CALLS, Duration::from_micros(10)).unwrap());
    for at in 0..10 {
        let op = Op::acquire("steady", &policy).at(Timestamp::from_micros(at).unwrap());
        assert!(limiter.run(op).await.unwrap().allowed());
    }
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    for at in 10..10 + CALLS {
        let op = Op::acquire("steady", &policy).at(Timestamp::from_micros(at).unwrap());
        assert_eq!(limiter.run(op).await.unwrap().used(), 10);
    }
    let steady = [("zrange", 2 * CALLS), ("zadd", CALLS), ("zremrangebyrank", CALLS), ("pexpire", CALLS)];
    expect("steady", &steady);
}
