//! What an append drops and merges: after each operation, Redis holds exactly what the reference store holds. A log with a resolution takes
//! few bytes.

use futures::future::join_all;
use limiter_core::store::{LogKey, Mode, Op, Settlement};
use limiter_core::{Counting, Decision, Limiter, Name, Receipt, Timestamp, WindowStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::{Answer, ReferenceStore};
use testbed::server::Server;

use crate::support::{START, at, calls, connect, members, random_below, reset_calls, run, size};

const SECOND: u64 = 1_000_000;

/// The time and the cost of each entry that Redis holds, oldest first, and the number of callers' ids.
fn held(server: &Server, store: &RedisStore, log: LogKey<'_>) -> (Vec<(Timestamp, u64)>, usize) {
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let entry = |member: &Vec<u8>| {
        let has_cost = if member[7] < 128 {
            member.len() > 26
        } else {
            [30, 42].contains(&member.len())
        };
        let cost = if has_cost {
            number(&member[member.len() - 7..])
        } else {
            1
        };
        (
            Timestamp::from_micros(number(&member[..7]) + (1 << 53) - (1 << 56)).unwrap(),
            cost,
        )
    };
    let (ids, entries): (Vec<_>, Vec<_>) = members(server, store, log)
        .into_iter()
        .partition(|member| member[0] == b'i');
    (entries.iter().map(entry).collect(), ids.len())
}

/// The policies of a log vary, entries with ids lie between others, and time moves by microseconds, by windows and by ten
/// minutes, and back. `LIMITER_SEED` sets other ones.
#[tokio::test]
async fn redis_holds_exactly_what_the_reference_holds() {
    let server = Server::start().unwrap();
    let redis = connect(&server.url()).await;
    let policies = [
        policy!("9/40s~10s"),
        policy!("40/30m~1m, 6/60s"),
        policy!("30/6m~10s"),
        policy!("60/20m~10m, 9/3m"),
        policy!("20/1h~10m").with_counting(Counting::Attempts),
        policy!("9/1s, 25/15m~1s").with_counting(Counting::Attempts),
        policy!("1000/1h"),
        policy!("4503599627370496/30m~1m"),
        // From here on they are exact.
        policy!("9/200s"),
        policy!("30/8m"),
        policy!("12/40m, 6/80m"),
        policy!("9/30s").with_counting(Counting::Attempts),
        policy!("4503599627370496/4h"),
    ];
    let first_seed = std::env::var("LIMITER_SEED").map_or(28, |seed| seed.parse().unwrap());
    let names = ["now", "the first", "the last"].map(Name::new);
    let every: Vec<_> = (0..policies.len()).collect();
    let (mut removed, mut repeated) = ([0; 4], 0);
    for (seed, start) in [START, 0, Timestamp::MAX.as_micros() - 20_000 * SECOND]
        .into_iter()
        .enumerate()
    {
        let reference = ReferenceStore::new();
        let mut pick = random_below(seed as u64 + first_seed);
        let (mut second, mut receipts, mut pair) = (0, [const { Vec::new() }; 5], vec![0]);
        for n in 0..size(3_000, 20_000) {
            second += match pick(12) {
                0..6 => 0,
                6..8 => 1,
                8..10 => pick(12),
                10 => pick(60),
                _ => pick(11) * pick(2) * 60,
            };
            let micros = [0, 0, 0, 1, 2, 3, SECOND - 1, pick(SECOND)][pick(8) as usize];
            let back = pick(8) / 7 * pick(30) * SECOND;
            let time = Timestamp::from_micros_saturating(
                (start + second * SECOND + micros).saturating_sub(back),
            );
            if n % 500 == 0 {
                pair = vec![pick(13) as usize, pick(13) as usize];
            }
            let place = pick(5) as usize;
            let logs = [
                ("pair", &pair[..]),
                ("two", &[1, 3]),
                ("all", &every),
                ("attempts", &[4, 5, 6]),
                ("exact", &every[8..]),
            ];
            let (key, of) = logs[place];
            let mut ops = Vec::new();
            // Usually one operation, or a run of alike ones.
            for _ in 0..1 + pick(8) / 7 * pick(3) {
                let mut policy = || &policies[of[pick(of.len() as u64) as usize]];
                let (own, default) = (policy(), policy());
                let cost = if pick(20) == 0 {
                    (1 << (39 + pick(14))) - pick(4)
                } else {
                    1 + pick(2) * pick(4)
                };
                let mut op = Op::record(key, own)
                    .with_name(names[seed])
                    .with_cost(cost)
                    .at(time);
                if pick(2) > 0 {
                    op = op.with_limiter_policy(default);
                }
                if pick(6) == 0 && op.receipt_window().is_some() {
                    op = op.with_id(u128::from(pick(12)));
                }
                if cost <= own.smallest_max() && pick(4) > 0 {
                    op.mode = if pick(8) == 0 {
                        Mode::Peek
                    } else {
                        Mode::Acquire
                    };
                }
                ops.extend(std::iter::repeat_n(
                    op,
                    1 + (pick(8) / 7 * pick(6)) as usize,
                ));
            }
            let log = ops[0].log;
            let before = reference.entries(log).len();
            let mut appended = 0;
            for op in &ops {
                let (got, expected) = (
                    run(&redis, *op).await.unwrap(),
                    run(&reference, *op).await.unwrap(),
                );
                let seen = |decision: &Decision| (Answer::from(decision), decision.appended());
                assert_eq!(
                    seen(&got),
                    seen(&expected),
                    "{start}, {n}: {op:?} of {ops:?}"
                );
                let is_named = |decision: &Decision| decision.receipt().is_some();
                assert_eq!(is_named(&got), is_named(&expected), "{start}, {n}: {op:?}");
                if let Some((of_redis, of_reference)) = got.receipt().zip(expected.receipt()) {
                    // An id may come again at one time. An older receipt then matches the new entry.
                    let name = |receipt: &Receipt| (receipt.entry(), receipt.at());
                    receipts[place].retain(|(mine, theirs)| {
                        name(mine) != name(&of_redis) || name(theirs) == name(&of_reference)
                    });
                    receipts[place].push((of_redis, of_reference));
                }
                let repeats = got.receipt().is_some_and(|receipt| receipt.at() < got.at());
                repeated += u64::from(repeats);
                appended += usize::from(got.appended() && !repeats);
            }
            let expect = |what: &str| {
                let (entries, ids) = held(&server, &redis, log);
                let expected = reference.entries(log);
                let times_and_costs: Vec<_> = expected
                    .iter()
                    .map(|entry| (entry.at, entry.cost))
                    .collect();
                assert_eq!(entries, times_and_costs, "{start}, {n}, {what}: {ops:?}");
                // Ids of entries that are gone leave with later appends.
                let expected_ids = expected.iter().filter(|entry| entry.id.is_some()).count();
                assert!(
                    ids >= expected_ids && (ids == 0 || !entries.is_empty()),
                    "{start}, {n}, {what}: {ops:?}"
                );
                expected.len()
            };
            removed[(before + appended - expect("applied")).min(3)] += u64::from(appended > 0);
            let latest = receipts[place].len() as u64;
            if pick(5) == 0 && latest > 0 && time < Timestamp::MAX {
                let (of_redis, of_reference) =
                    receipts[place].remove((latest - 1 - pick(latest.min(12))) as usize);
                let cost = pick(3);
                let settlement =
                    |receipt| Settlement::new(log, ops[0].policy, receipt, cost).at(time);
                let got = redis.settle(settlement(of_redis)).await.unwrap();
                let expected = reference.settle(settlement(of_reference)).await.unwrap();
                assert_eq!(
                    (got.applied, got.log.newest),
                    (expected.applied, expected.log.newest),
                    "{start}, {n}: {of_redis:?}"
                );
                expect("settled");
            }
        }
    }
    let found =
        format!("appends removed 0, 1, 2 and more entries {removed:?} times, {repeated} repeated");
    println!("{found}");
    assert!(
        removed.iter().all(|times| *times > 200) && repeated > 30,
        "{found}"
    );
}

/// A few appends remove hundreds of ids whose entries merged or expired, and a refund of the last entry removes all. No append reads
/// all entries of one time.
#[tokio::test]
async fn ids_of_entries_that_are_gone_leave_with_later_appends() {
    const IDS: u64 = 300;
    let server = Server::start().unwrap();
    let exact = policy!("100000/5m");
    for (policy, step, refunds) in [
        (policy!("100000/1s, 100000/1h~1m"), 1, false),
        (exact.clone(), 1, false),
        (exact.clone(), 1, true),
        (exact, 0, false),
    ] {
        let limiter = Limiter::new("ids", policy, connect(&server.url()).await);
        let log = LogKey::new(limiter.name(), "k");
        for first in (0..IDS).step_by(50) {
            // From the last on, so that the oldest entry has the id that sorts last.
            let record = |n| {
                limiter
                    .record("k")
                    .at(at(n * step))
                    .idempotency_key(u128::from(IDS - n))
                    .into_future()
            };
            reset_calls(&server);
            assert!(
                join_all((first..first + 50).map(record))
                    .await
                    .into_iter()
                    .all(|done| done.unwrap().appended())
            );
            let commands = calls(&server)["zrangebylex"];
            assert!(
                commands <= 100,
                "{commands} searches by 50 appends after {first}"
            );
        }
        assert_eq!(held(&server, limiter.store(), log).1 as u64, IDS);
        let mut left = IDS as usize;
        for minute in 15..18 {
            let time = at(minute * 60 * SECOND);
            let receipt = limiter.record("k").at(time).await.unwrap().receipt();
            let ids = held(&server, limiter.store(), log).1;
            assert!(ids < left, "{ids} of {left}");
            left = ids;
            if refunds {
                assert!(
                    limiter
                        .refund("k", receipt.unwrap())
                        .at(time)
                        .await
                        .unwrap()
                        .applied()
                );
                assert_eq!(members(&server, limiter.store(), log).len(), 0);
                break;
            }
        }
        assert!(refunds || left == 0, "{left}");
        limiter.reset("k").await.unwrap();
    }
}

/// Full logs, of entries in each cell: the entries and bytes that are left.
#[tokio::test]
async fn a_log_takes_few_bytes() {
    let server = Server::start().unwrap();
    for (policy, cells, in_each, most_entries, most_bytes) in [
        (policy!("100/1h"), 100, 1, 100, 3_200),
        (policy!("1000/1h"), 1_000, 1, 1_000, 140_000),
        (policy!("1000000/30d~1h"), 720, 3, 722, 120_000),
        (policy!("1000000/30d~6h"), 120, 3, 122, 6_000),
        (policy!("1000/1h~1m"), 60, 3, 62, 3_000),
    ] {
        let limit = policy.limits()[0];
        let limiter = Limiter::new(limit.to_string(), policy, connect(&server.url()).await);
        let (step, cost) = (
            limit.window().as_micros() / cells / in_each,
            limit.max() / cells / in_each,
        );
        for n in 0..3 * cells * in_each {
            let _ = limiter
                .record("k")
                .cost(cost)
                .at(at(n * step))
                .await
                .unwrap();
        }
        let (log, store) = (LogKey::new(limiter.name(), "k"), limiter.store());
        let entries = store.inspect(log).await.unwrap().unwrap().entries;
        // Unless told to look at all entries, Redis extrapolates from five, whose sizes are random in a skip list.
        let usage: [&[u8]; 5] = [b"MEMORY", b"USAGE", &store.redis_key(log), b"SAMPLES", b"0"];
        let bytes = server.command::<i64>(&usage).unwrap();
        println!("{limit}: {entries} entries, {bytes} bytes");
        assert!(
            (cells..=most_entries).contains(&entries) && bytes <= most_bytes,
            "{limit}: {entries}, {bytes}"
        );
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
        let records = batch.map(|n| {
            limiter
                .record("k")
                .at(at(minute - entries / 2 + n))
                .into_future()
        });
        assert!(
            join_all(records)
                .await
                .into_iter()
                .all(|done| done.unwrap().is_allowed())
        );
    }
    reset_calls(&server);
    let decision = limiter
        .acquire("k")
        .at(at(minute + 5 * SECOND))
        .await
        .unwrap();
    let commands: u64 = calls(&server)
        .iter()
        .filter(|(name, _)| name.starts_with('z'))
        .map(|(_, calls)| calls)
        .sum();
    println!("{entries} entries merge with {commands} commands");
    assert!(commands <= 40, "{commands} commands");
    let log = limiter
        .store()
        .inspect(LogKey::new(limiter.name(), "k"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((log.entries, log.cost), (3, entries + 1));
    let [second, hour] = &decision.limits()[..] else {
        panic!("{decision:?}")
    };
    assert_eq!((second.used(), hour.used()), (1, entries + 1));
    assert_eq!(decision.at().micros_since(log.oldest), 5 * SECOND + 1);
}
