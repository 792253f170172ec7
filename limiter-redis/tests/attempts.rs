//! Denied attempts that count: the fast path appends them, and decides as the general path and the oracle do.

use limiter_core::store::{LogKey, Mode, Op};
use limiter_core::{Counting, Limit, Name, Policy, Timestamp, Window};
use limiter_testkit::conformance::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use limiter_testkit::server::{Reply, Server};
use proptest::collection::vec;
use proptest::prelude::*;

use common::{agree_with_the_oracle, connect, run, with_receipts};

mod common;

const START: u64 = 1_700_000_000_000_000;
const WINDOW: u64 = 100;

fn attempts(max: u64) -> Policy {
    let limit = Limit::with_window(max, Window::from_micros(WINDOW).unwrap()).unwrap();
    Policy::from(limit).with_counting(Counting::Attempts)
}

/// The calls of each command, by clients and scripts.
fn calls(server: &Server) -> Vec<(String, u64)> {
    let stats = server.info("commandstats").unwrap();
    let line = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((command.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    let mut calls: Vec<_> = stats.lines().filter_map(line).filter(|(command, _)| !command.contains('|')).collect();
    calls.retain(|(command, _)| !["info", "evalsha", "config"].contains(&command.as_str()));
    calls.sort();
    calls
}

#[tokio::test]
async fn a_denied_attempt_takes_two_reads_and_two_writes() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policy = Policy::from(Limit::per_hour(10).unwrap()).with_counting(Counting::Attempts);
    let op = Op::acquire("k", &policy);
    for n in 0..30 {
        assert_eq!(run(&store, op).await.unwrap().allowed(), n < 10);
    }
    assert_eq!(server.command(&["CONFIG", "RESETSTAT"]).unwrap().text(), "OK");
    for _ in 0..100 {
        assert!(!run(&store, op).await.unwrap().allowed());
    }
    // Once more each if the entry also sets the key's time to live.
    let expected = [("time", 100), ("zadd", 100), ("zrange", 200), ("zremrangebyrank", 100)];
    let mut calls = calls(&server);
    calls.retain(|(command, _)| command != "pexpireat");
    assert_eq!(calls, expected.map(|(command, count)| (command.to_owned(), count)));
}

#[tokio::test]
async fn a_log_of_denied_attempts_holds_the_maximum() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let policy = attempts(5);
    let stored = store.redis_key(LogKey::new(Name::default(), "k"));
    for n in 0..1_000 {
        let at = Timestamp::from_micros(START + n).unwrap();
        let decision = run(&store, Op::acquire("k", &policy).at(at)).await.unwrap();
        assert_eq!(decision.allowed(), n < 5);
        let Reply::List(members) = server.command(&[b"ZRANGE".as_slice(), &stored, b"0", b"-1"]).unwrap() else {
            panic!("a list")
        };
        assert_eq!(members.len() as u64, 5.min(n + 1));
        // Entries that are not short would keep the next operation from the fast path.
        assert!(members.iter().all(|member| matches!(member, Reply::Bytes(Some(bytes)) if bytes.len() == 26)));
    }
}

/// Attempts on one log, most of which are denied. With `ids`, every one has a caller's id and takes the general path.
fn case(limits: &[(u64, u64)], steps: &[(u8, u64, u64, u8)], ids: bool) -> Case {
    let limit = |&(max, window)| Limit::with_window(max, Window::from_micros(window).unwrap()).unwrap();
    let policies = limits.iter().map(|pair| Policy::from(limit(pair)).with_counting(Counting::Attempts));
    let mut policies: Vec<Policy> = policies.collect();
    if limits.len() > 1 {
        policies.extend(Policy::new(limits.iter().map(limit)).map(|policy| policy.with_counting(Counting::Attempts)));
    }
    policies.push(Policy::from(limit(&limits[0])));
    let limiters = vec![CaseLimiter::NONE, CaseLimiter { name: 0, policy: Some(0) }];
    let count = policies.len() as u8;
    let step = |(number, &(kind, after, cost, n)): (usize, &(u8, u64, u64, u8))| {
        let (policy, on) = ((n / 8).min(count - 1), Place { limiter: n % 2, key: 0 });
        let id = ids.then_some(CaseId::Fresh(number as u8));
        let operation = match kind {
            0 => Operation::Settle { step: n.into(), on: None, cost: cost - 1, policy },
            1 => Operation::Run { mode: Mode::Record, on, policy, cost, id },
            2 | 3 => Operation::Run { mode: Mode::Peek, on, policy, cost, id: None },
            _ => Operation::Run { mode: Mode::Acquire, on, policy, cost, id },
        };
        Step { after: after as i64, operation }
    };
    let steps = steps.iter().enumerate().map(step).collect();
    Case { policies, limiters, start: START, steps: with_receipts(steps) }
}

#[test]
fn both_paths_decide_alike_on_attempts() {
    let after = prop_oneof![4 => Just(0_u64), 8 => 1..4_u64, 1 => WINDOW - 5..WINDOW + 5];
    let cost = prop_oneof![6 => Just(1_u64), 1 => 2..6_u64];
    // Mostly the first policy.
    let choice = prop_oneof![4 => 0..8_u8, 1 => 0..32_u8];
    let limits = vec((1..7_u64, prop_oneof![3 => Just(WINDOW), 1 => 5..20_u64]), 1..=2);
    let strategy = (limits, vec((0..16_u8, after, cost, choice), 1..=60));
    agree_with_the_oracle(file!(), 2_000, &strategy, |(limits, steps)| {
        [false, true].map(|ids| case(&limits, &steps, ids)).into()
    });
}
