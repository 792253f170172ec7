//! What an append keeps: whatever the operation's own policy or its limiter's can see, and nothing else.

use limiter_core::store::{LogKey, Mode, Op};
use limiter_core::{Counting, Limit, LimitStatus, Limiter, Policy, Timestamp, Window, policy};
use limiter_redis::RedisStore;
use limiter_testkit::conformance::{Case, CaseLimiter, Operation, Place, Step};
use limiter_testkit::server::{Reply, Server};
use limiter_testkit::{Answer, OracleStore};
use proptest::collection::vec;
use proptest::prelude::*;

use common::{agree_with_the_oracle, connect, random_below, run, with_receipts};

mod common;

const START: u64 = 1_700_000_000_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(START + micros).unwrap()
}

/// The entries and the callers' ids that Redis holds for a log.
fn members(server: &Server, store: &RedisStore, log: LogKey<'_>) -> (usize, usize) {
    let members = server.command(&[b"ZRANGE".as_slice(), &store.redis_key(log), b"0", b"-1"]).unwrap();
    let Reply::List(members) = members else { panic!("{members:?}") };
    let is_id = |member: &&Reply| matches!(member, Reply::Bytes(Some(bytes)) if bytes[0] == b'i');
    let ids = members.iter().filter(is_id).count();
    (members.len() - ids, ids)
}

#[tokio::test]
async fn a_gold_customers_request_erases_nothing_that_the_limiter_counts() {
    let server = Server::start().unwrap();
    let search = Limiter::new("search", policy!("3/1s, 100/1h"), connect(&server.url()).await);
    let other = Limiter::new("login", policy!("3/1s, 100/1h"), connect(&server.url()).await);
    let gold = policy!("50/1s");
    let second = 1_000_000;
    for _ in 0..3 {
        assert!(search.acquire("k").at(at(0)).await.unwrap().allowed());
    }
    assert!(search.acquire("k").policy(&gold).at(at(2 * second)).await.unwrap().allowed());
    let status = search.status("k").at(at(2 * second)).await.unwrap();
    let used: Vec<u64> = status.limits().iter().map(LimitStatus::used).collect();
    assert_eq!(used, [1, 4]);
    assert_eq!(other.status("k").at(at(2 * second)).await.unwrap().used(), 0);

    // At 40 a second, the newest 100 are all that anybody can see.
    for n in 0..300 {
        let time = at(3 * second + n * second / 40);
        assert!(search.acquire("k").policy(&gold).at(time).await.unwrap().allowed(), "{n}");
    }
    assert_eq!(members(&server, search.store(), LogKey::new(search.name(), "k")), (100, 0));
    let status = search.status("k").at(at(11 * second)).await.unwrap();
    assert_eq!((status.limits()[1].used(), status.limits()[0].used()), (100, 3));
}

#[tokio::test]
async fn an_operation_without_a_limiter_keeps_what_its_own_policy_can_see() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let (short, long) = (policy!("9/10us"), policy!("9/1s"));
    for time in 0..5 {
        assert!(run(&store, Op::acquire("k", &long).at(at(time))).await.unwrap().allowed());
    }
    let decision = run(&store, Op::acquire("k", &short).at(at(100))).await.unwrap();
    assert_eq!(decision.used(), 1);
    assert_eq!(run(&store, Op::peek("k", &long).at(at(100))).await.unwrap().used(), 1);
}

#[tokio::test]
async fn a_log_holds_an_id_once() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let (short, long) = (policy!("9/10us"), policy!("3/10us, 9/1ms"));
    let op = |policy| Op::acquire("k", policy).with_id(7_u128);
    let log = op(&short).log;

    let first = run(&store, op(&long).at(at(0))).await.unwrap().receipt().unwrap();
    assert_eq!(first.window(), long.longest_window());
    // Expired for the operation's own policy, but not for the limiter's.
    for (n, op) in
        [op(&short).with_limiter_policy(&long), op(&long), op(&long).with_limiter_policy(&short)].iter().enumerate()
    {
        let receipt = run(&store, op.at(at(999))).await.unwrap().receipt().unwrap();
        assert_eq!((receipt.at(), members(&server, &store, log)), (at(0), (1, 1)), "{n}");
    }
    // Expired for both: the entry is replaced, and its id with it.
    let again = run(&store, op(&short).with_limiter_policy(&long).at(at(1_000))).await.unwrap().receipt().unwrap();
    assert_eq!((again.at(), members(&server, &store, log)), (at(1_000), (1, 1)));
    let again = run(&store, op(&short).at(at(1_010))).await.unwrap().receipt().unwrap();
    assert_eq!((again.at(), members(&server, &store, log)), (at(1_010), (1, 1)));

    // Beyond the largest maximum, the id goes with its entry too.
    for cost in [8, 9] {
        let op = Op::record("k", &short).with_limiter_policy(&long).with_cost(cost).at(at(1_011));
        assert!(run(&store, op).await.unwrap().receipt().is_some());
        assert_eq!(members(&server, &store, log), if cost == 8 { (2, 1) } else { (1, 0) });
    }
    let again = run(&store, op(&short).with_limiter_policy(&long).at(at(1_021))).await.unwrap();
    assert_eq!((again.receipt().unwrap().at(), members(&server, &store, log)), (at(1_021), (2, 1)));
}

/// The rule is exact: after each append, Redis holds the entries that the oracle holds, no more and no fewer.
#[tokio::test]
async fn an_append_drops_exactly_what_nobody_can_see() {
    let server = Server::start().unwrap();
    let (redis, oracle) = (connect(&server.url()).await, OracleStore::new());
    let policies =
        [policy!("9/40us"), policy!("12/30us, 6/60us"), policy!("30/6us"), policy!("7/200us"), policy!("9/3us")];
    let mut pick = random_below(5);
    let (mut time, mut dropped) = (0, [0; 4]);
    for n in 0..6_000 {
        let key = ["units", "costs", "ids"][pick(3) as usize];
        let (own, default) = (&policies[pick(5) as usize], &policies[pick(5) as usize]);
        let cost = if key == "units" { 1 } else { 1 + pick(4) };
        time += pick(3);
        let mut op = Op::record(key, own).with_cost(cost).at(at(time));
        if key == "ids" && pick(2) == 0 {
            op = op.with_id(n);
        }
        if pick(4) > 0 {
            op = op.with_limiter_policy(default);
        }
        if cost <= own.smallest_max() && pick(4) > 0 {
            op.mode = Mode::Acquire;
        }
        let before = oracle.entries(op.log).len();
        let (got, expected) = (run(&redis, op).await.unwrap(), run(&oracle, op).await.unwrap());
        assert_eq!(Answer::from(&got), Answer::from(&expected), "{n}: {op:?}");
        let entries = oracle.entries(op.log);
        let held = entries.iter().map(|entry| entry.cost).sum::<u64>();
        let info = redis.inspect(op.log).await.unwrap().unwrap();
        let oldest = entries.first().map(|entry| entry.at);
        assert_eq!((info.entries, info.cost, Some(info.oldest)), (entries.len() as u64, held, oldest), "{n}: {op:?}");
        if got.receipt().is_some() {
            dropped[(before + 1 - entries.len()).min(3)] += 1;
        }
    }
    assert!(dropped.iter().all(|times| *times > 100), "{dropped:?} appends dropped 0, 1, 2 and more entries");
}

/// Logs of over a hundred entries, mostly appended on the fast path, under policies that see further or less far by time and
/// by cost.
fn long_logs() -> impl Strategy<Value = Case> {
    const LIMITS: [(u64, u64); 9] = [
        (40, 30),
        (150, 500),
        (90, 500),
        (200, 120),
        (20, 2_000),
        (65_600, 300),
        (70_000, 2_000),
        (250, 2_000),
        (1_000, 60),
    ];
    let limit = |i: usize| Limit::with_window(LIMITS[i].0, Window::from_micros(LIMITS[i].1).unwrap()).unwrap();
    let policy = (vec(0..LIMITS.len(), 1..=2), 0..8_u8).prop_map(move |(limits, kind)| {
        let policy = Policy::new(limits.into_iter().map(limit)).unwrap();
        if kind == 0 { policy.with_counting(Counting::Attempts) } else { policy }
    });
    // Mostly costs of 1; large ones in half of the cases.
    let step = (0..40_u8, 0..6_i64, 0..20_usize, 0..4_u8, 0..4_u8, any::<u8>());
    (vec(policy, 2..=4), vec(step, 200..=400), any::<bool>()).prop_map(|(policies, steps, large)| {
        let step = |(kind, after, cost, policy, limiter, n): (u8, i64, usize, u8, u8, u8)| {
            let cost = match (cost, large) {
                (0..=1, false) => 2 + cost as u64,
                (0..=4, true) => 500 * (1 + cost as u64),
                _ => 1,
            };
            let mode = match kind {
                0 => Mode::Record,
                1 | 2 => Mode::Peek,
                _ => Mode::Acquire,
            };
            let operation = match kind {
                3 => Operation::Settle { step: n.into(), on: None, cost: u64::from(n % 4), policy },
                _ => Operation::Run { mode, on: Place { limiter, key: 0 }, policy, cost, id: None },
            };
            Step { after: after - 1, operation }
        };
        let steps = with_receipts(steps.into_iter().map(step).collect());
        let limiters = vec![
            CaseLimiter { name: 0, policy: Some(0) },
            CaseLimiter { name: 0, policy: Some(0) },
            CaseLimiter { name: 0, policy: Some(1) },
            CaseLimiter::NONE,
        ];
        Case { policies, limiters, start: START, steps }
    })
}

#[test]
fn long_logs_under_changing_policies_agree_with_the_oracle() {
    agree_with_the_oracle(file!(), 150, &long_logs(), |case| vec![case]);
}
