//! Group commit makes the decisions that the operations would get one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures::future::join_all;
use limiter_core::store::{Facts, LogKey, Mode, Op, Outcome, Settlement};
use limiter_core::{Counting, Name, Policy, Receipt, Timestamp, WindowStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;
use limiter_testkit::{Answer, OracleStore};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use common::{connect_with_group_commit, runner};

mod common;

const START: u64 = 1_700_000_000_000_000;

/// One operation of a batch.
#[derive(Clone, Copy, Debug)]
struct Planned {
    mode: Mode,
    policy: usize,
    /// The number of the limiter's policy, if it is another one.
    default: Option<usize>,
    cost: u64,
    /// The caller's id.
    id: Option<u128>,
}

/// Operations that arrive together, some time after the ones before.
#[derive(Clone, Debug)]
struct Batch {
    after: u64,
    planned: Vec<Planned>,
    /// Refunds the entry that was appended this many entries ago, afterwards.
    refund: Option<usize>,
}

fn policies() -> Vec<Policy> {
    let windows = [policy!("5/100us"), policy!("9/100us, 20/1ms"), policy!("40/100us, 12/1ms"), policy!("30/2ms")];
    let attempts = windows[0].clone().with_counting(Counting::Attempts);
    // For totals that take more bits.
    let large = policy!("4503599627370496/2ms");
    windows.into_iter().chain([attempts, large]).collect()
}

/// Mostly runs of alike acquires.
fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let mode = prop_oneof![12 => Just(Mode::Acquire), 1 => Just(Mode::Peek), 1 => Just(Mode::Record)];
    let default = prop_oneof![3 => Just(None), 1 => (0_usize..6).prop_map(Some)];
    let cost =
        prop_oneof![24 => Just(1_u64), 8 => 2_u64..=5, 1 => Just((1_u64 << 39) - 3), 2 => Just((1_u64 << 48) - 3)];
    let id = prop_oneof![9 => Just(None), 1 => (0_u128..4).prop_map(Some)];
    let planned = (mode, 0_usize..6, default, cost, id).prop_map(|(mode, policy, default, cost, id)| Planned {
        mode,
        policy,
        default,
        cost,
        id,
    });
    let run = (planned, 1_usize..=12).prop_map(|(planned, count)| vec![planned; count]);
    let after = prop_oneof![2 => Just(0_u64), 4 => 1_u64..60, 1 => 60_u64..1500];
    let refund = prop_oneof![4 => Just(None), 1 => (0_usize..8).prop_map(Some)];
    let batch = (after, prop::collection::vec(run, 1..=3), refund).prop_map(|(after, runs, refund)| Batch {
        after,
        planned: runs.concat(),
        refund,
    });
    prop::collection::vec(batch, 1..=10)
}

/// The fields of a decision, or the text of an error, and whether an entry was appended or found.
fn shown(op: &Op<'_>, facts: Result<Facts, limiter_core::Error>) -> Result<(Answer, bool, bool), String> {
    let facts = facts.map_err(|error| format!("{error:?}"))?;
    facts.verify(op).map_err(|error| format!("{error:?}"))?;
    let (appended, repeated) =
        (matches!(facts.outcome, Outcome::Appended(_)), matches!(facts.outcome, Outcome::Repeated(_)));
    Ok((Answer::from(&limiter_core::store::decide(op, facts)), appended, repeated))
}

fn entry(facts: &Facts) -> Option<limiter_core::store::Entry> {
    match facts.outcome {
        Outcome::Appended(entry) => Some(entry),
        _ => None,
    }
}

/// Runs the batches on the store, all operations of one together, and on the oracle one by one.
async fn compare(redis: &RedisStore, key: &str, batches: &[Batch]) -> Result<(), TestCaseError> {
    let (oracle, policies) = (OracleStore::new(), policies());
    let log = LogKey::new(Name::default(), key);
    let mut at = START;
    // The entries appended so far: in Redis and in the oracle.
    let mut entries = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        at += batch.after;
        let now = Timestamp::from_micros(at).unwrap();
        let ops = batch.planned.iter().filter_map(|planned| {
            let mut op = Op::new(planned.mode, key, &policies[planned.policy]).with_cost(planned.cost).at(now);
            (op.limiter_policy, op.id) = (planned.default.map(|i| &policies[i]), planned.id.map(Into::into));
            op.checked().ok()
        });
        let ops: Vec<Op<'_>> = ops.collect();
        let together = join_all(ops.iter().map(|op| redis.apply(*op))).await;
        for (place, (op, facts)) in ops.iter().zip(together).enumerate() {
            let expected = oracle.apply(*op).await;
            if let (Ok(facts), Ok(expected)) = (&facts, &expected) {
                entries.extend(entry(facts).zip(entry(expected)));
            }
            prop_assert_eq!(shown(op, facts), shown(op, expected), "batch {}, place {}: {:?}", number, place, op);
        }
        if let Some((mine, theirs)) = batch.refund.and_then(|back| entries.iter().rev().nth(back)) {
            let window = policies[3].longest_window();
            let settle = |entry: &limiter_core::store::Entry| {
                Settlement::new(log, &policies[3], Receipt::new(entry.id, entry.at, window), 0).at(now)
            };
            let (mine, theirs) = (settle(mine), settle(theirs));
            let (mine, theirs) = (redis.settle(mine).await.unwrap(), oracle.settle(theirs).await.unwrap());
            prop_assert_eq!((mine.applied, mine.log.newest), (theirs.applied, theirs.log.newest), "batch {}", number);
        }
    }
    redis.reset(log).await.unwrap();
    Ok(())
}

#[test]
fn a_group_gets_the_facts_that_its_operations_get_one_by_one() {
    let server = Server::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Arc::new(runtime.block_on(connect_with_group_commit(&server.url())));
    let cases = std::env::var("LIMITER_SEQUENCES").map_or(1_000, |text| text.parse().unwrap());
    let (tried, operations) = (AtomicU32::new(0), AtomicUsize::new(0));
    let result = runner(file!(), cases).run(&batches(), |batches| {
        let count = batches.iter().map(|batch| batch.planned.len()).sum();
        operations.fetch_add(count, Ordering::Relaxed);
        let key = tried.fetch_add(1, Ordering::Relaxed).to_string();
        runtime.block_on(compare(&redis, &key, &batches))
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    let stats = server.info("commandstats").unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()).unwrap();
    let (calls, operations) = (calls.parse::<usize>().unwrap(), operations.into_inner());
    assert!(3 * calls < 2 * operations, "{calls} calls for {operations} operations");
}
