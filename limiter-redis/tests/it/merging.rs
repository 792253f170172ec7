//! Under a limit with a resolution, entries merge exactly as the contract says, and a log takes few bytes.

use futures::future::join_all;
use limiter_core::store::{LogKey, Mode, Op, Settlement};
use limiter_core::{Counting, Limiter, Name, Timestamp, WindowStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;
use limiter_testkit::{Answer, OracleStore};

use crate::support::{
    START, at, calls, connect, connect_with_group_commit, members, random_below, reset_calls, run, size,
};

const SECOND: u64 = 1_000_000;

/// The time and the cost of each entry that Redis holds, oldest first.
fn entries(server: &Server, store: &RedisStore, log: LogKey<'_>) -> Vec<(Timestamp, u64)> {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let entry = |member: Vec<u8>| {
        let has_cost = if member[7] < 128 { member.len() > 26 } else { member[16] & 4 > 0 };
        let cost = if has_cost { number(&member[member.len() - 7..]) } else { 1 };
        (Timestamp::from_micros(number(&member[..7]) + (1 << 53) - (1 << 56)).unwrap(), cost)
    };
    members(server, store, log).into_iter().filter(|member| member[0] != b'i').map(entry).collect()
}

/// After each operation, Redis holds the entries that the oracle holds: their times and costs. The policies of a log vary, kept
/// entries and ids lie between others, and time moves by microseconds, by windows and by ten minutes, and back.
#[tokio::test]
async fn an_append_merges_exactly_what_the_contract_says() {
    let server = Server::start().unwrap();
    let redis = connect_with_group_commit(&server.url()).await;
    let policies = [
        policy!("9/40s~10s"),
        policy!("40/30m~1m, 6/60s"),
        policy!("30/6m~10s"),
        policy!("9/200s"),
        policy!("60/20m~10m, 9/3m~1s"),
        policy!("20/1h~10m").with_counting(Counting::Attempts),
        policy!("9/1s~10ms, 25/15m~1s").with_counting(Counting::Attempts),
        policy!("1000/1h"),
        policy!("4503599627370496/30m~1m"),
    ];
    let names = ["now", "the first", "the last"].map(Name::new);
    let every: Vec<_> = (0..policies.len()).collect();
    let (mut merged, mut grouped) = (0, 0);
    for (seed, start) in [START, 0, Timestamp::MAX.as_micros() - 20_000 * SECOND].into_iter().enumerate() {
        let oracle = OracleStore::new();
        let mut pick = random_below(seed as u64 + 28);
        let (mut time, mut receipts, mut pair) = (start, [const { Vec::new() }; 4], vec![0]);
        for n in 0..size(3_000, 20_000) {
            time += match pick(12) {
                0..3 => 0,
                3..6 => pick(5),
                6..8 => pick(SECOND),
                8..10 => pick(12) * SECOND,
                10 => pick(60) * SECOND,
                _ => pick(11) * pick(2) * 60 * SECOND,
            };
            let back = pick(8) / 7 * pick(30) * SECOND;
            let time = Timestamp::from_micros_saturating(time.saturating_sub(back));
            if n % 500 == 0 {
                pair = vec![pick(9) as usize, pick(9) as usize];
            }
            let place = pick(4) as usize;
            let (key, of) = [("pair", &pair[..]), ("two", &[1, 4]), ("all", &every), ("attempts", &[5, 6, 7])][place];
            let mut policy = || &policies[of[pick(of.len() as u64) as usize]];
            let (own, default) = (policy(), policy());
            let cost = if pick(20) == 0 { 1 << (40 + pick(13)) } else { 1 + pick(2) * pick(4) };
            let mut op = Op::record(key, own).with_name(names[seed]).with_cost(cost).at(time);
            op.keep = pick(3) == 0;
            if pick(6) == 0 {
                op = op.with_id(u128::from(pick(40)));
            }
            if pick(2) > 0 {
                op = op.with_limiter_policy(default);
            }
            if cost <= own.smallest_max() && pick(4) > 0 {
                op.mode = if pick(8) == 0 { Mode::Peek } else { Mode::Acquire };
            }
            // The first goes alone, and those that may share a call follow in one.
            let count = 1 + pick(8) / 7 * pick(5);
            let before = oracle.entries(op.log).len();
            for (place_in_group, got) in join_all((0..count).map(|_| run(&redis, op))).await.into_iter().enumerate() {
                let (got, expected) = (got.unwrap(), run(&oracle, op).await.unwrap());
                assert_eq!(Answer::from(&got), Answer::from(&expected), "{start}, {n}, {place_in_group}: {op:?}");
                receipts[place].extend(got.receipt().zip(expected.receipt()));
                grouped += u64::from(place_in_group > 1);
            }
            let expect = |what: &str| {
                let held: Vec<_> = oracle.entries(op.log).iter().map(|entry| (entry.at, entry.cost)).collect();
                assert_eq!(entries(&server, &redis, op.log), held, "{start}, {n}, {what}: {op:?}");
                held.len()
            };
            merged += u64::from(expect("applied") < before);
            // Where time stands still, an id may come twice at one time, and then a receipt names both entries.
            let latest = receipts[place].len() as u64;
            if pick(5) == 0 && latest > 0 && time < Timestamp::MAX {
                let (of_redis, of_oracle) = receipts[place].remove((latest - 1 - pick(latest.min(12))) as usize);
                receipts[place].retain(|(receipt, _)| *receipt != of_redis);
                let cost = pick(3);
                let settlement = |receipt| Settlement::new(op.log, own, receipt, cost).at(time);
                let got = redis.settle(settlement(of_redis)).await.unwrap();
                let expected = oracle.settle(settlement(of_oracle)).await.unwrap();
                assert_eq!((got.applied, got.log.newest), (expected.applied, expected.log.newest), "{start}, {n}");
                expect("settled");
            }
        }
    }
    assert!(merged > 500 && grouped > 500, "{merged} appends merged more than they added, {grouped} shared a call");
}

/// Full logs of limits that are sold: their entries and their bytes.
#[tokio::test]
async fn a_log_with_a_resolution_takes_few_bytes() {
    let server = Server::start().unwrap();
    for (policy, cells, most_entries, most_bytes) in [
        (policy!("1000000/30d~1h"), 720, 722, 120_000),
        (policy!("1000000/30d~6h"), 120, 122, 6_000),
        (policy!("1000/1h~1m"), 60, 62, 3_000),
    ] {
        let limit = policy.limits()[0];
        let limiter = Limiter::new(limit.to_string(), policy, connect(&server.url()).await);
        let step = limit.window().as_micros() / cells / 3;
        for n in 0..9 * cells {
            let _ = limiter.record("k").cost(limit.max() / cells / 3).at(at(n * step)).await.unwrap();
        }
        let log = limiter.store().inspect(LogKey::new(limiter.name(), "k")).await.unwrap().unwrap();
        println!("{}: {} entries, {} bytes", limit, log.entries, log.bytes);
        assert!((cells..=most_entries).contains(&log.entries) && log.bytes <= most_bytes, "{limit}: {log:?}");
    }
}

/// After a pause, one append merges thousands of entries with a few commands for each cell.
#[tokio::test]
async fn thousands_of_entries_merge_with_few_commands() {
    let server = Server::start().unwrap();
    let policy = policy!("1000000/1s, 1000000/1h~1m");
    let limiter = Limiter::new("paused", policy, connect(&server.url()).await);
    // Half of them in the minute before.
    let (entries, minute) = (size(5_000, 100_000), 40 * SECOND);
    for first in (0..entries).step_by(32) {
        let batch = first..entries.min(first + 32);
        let records = batch.map(|n| limiter.record("k").at(at(minute - entries / 2 + n)).into_future());
        assert!(join_all(records).await.into_iter().all(|done| done.unwrap().allowed()));
    }
    reset_calls(&server);
    let decision = limiter.acquire("k").at(at(minute + 5 * SECOND)).await.unwrap();
    let commands: u64 = calls(&server).iter().filter(|(name, _)| name.starts_with('z')).map(|(_, calls)| calls).sum();
    println!("{entries} entries merge with {commands} commands");
    assert!(commands <= 40, "{commands} commands");
    let log = limiter.store().inspect(LogKey::new(limiter.name(), "k")).await.unwrap().unwrap();
    assert_eq!((log.entries, log.cost), (3, entries + 1));
    let [second, hour] = &decision.limits()[..] else { panic!("{decision:?}") };
    assert_eq!((second.used(), hour.used()), (1, entries + 1));
    assert_eq!(decision.at().micros_since(log.oldest), 5 * SECOND + 1);
}
