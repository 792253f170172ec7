//! What an append keeps: whatever the operation's own policy or its limiter's can see, and nothing else.

use limiter_core::policy;
use limiter_core::store::{Mode, Op};
use limiter_testkit::server::Server;
use limiter_testkit::{Answer, OracleStore};

use crate::support::{at, connect, members, random_below, run, size};

/// The rule is exact: after each append, Redis holds the entries that the oracle holds, and their ids, no more and no fewer.
#[tokio::test]
async fn an_append_drops_exactly_what_nobody_can_see() {
    let server = Server::start().unwrap();
    let (redis, oracle) = (connect(&server.url()).await, OracleStore::new());
    let policies =
        [policy!("9/40us"), policy!("12/30us, 6/60us"), policy!("30/6us"), policy!("7/200us"), policy!("9/3us")];
    let mut pick = random_below(5);
    let (mut time, mut dropped, mut repeated) = (0, [0; 4], 0);
    for n in 0..size(3_000, 6_000) {
        let key = ["units", "costs", "ids"][pick(3) as usize];
        let (own, default) = (&policies[pick(5) as usize], &policies[pick(5) as usize]);
        let cost = if key == "units" { 1 } else { 1 + pick(4) };
        time += pick(3);
        let mut op = Op::record(key, own).with_cost(cost).at(at(time));
        if key == "ids" && pick(2) == 0 {
            op = op.with_id(u128::from(pick(40)));
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
        if key == "ids" {
            let ids = members(&server, &redis, op.log).iter().filter(|member| member[0] == b'i').count();
            assert_eq!(ids, entries.iter().filter(|entry| entry.id.is_some()).count(), "{n}: {op:?}");
        }
        match (before + 1).checked_sub(entries.len()) {
            _ if got.receipt().is_none() => {}
            _ if got.receipt().is_some_and(|receipt| receipt.at() < at(time)) => repeated += 1,
            count => dropped[count.unwrap().min(3)] += 1,
        }
    }
    assert!(dropped.iter().all(|times| *times > 50), "{dropped:?} appends dropped 0, 1, 2 and more entries");
    assert!(repeated > 10, "{repeated} ids were found again");
}
