//! What Redis holds of a log: after each random operation exactly what the reference store holds, in entries of the shortest form and
//! in few bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use limiter_core::store::{
    Entry, EntryId, Facts, LogKey, Op, Outcome, Settlement, SettlementFacts, async_trait,
};
use limiter_core::{
    Error, Limit, MAX_COST, Policy, Receipt, Timestamp, Window, WindowStore, policy,
};
use limiter_redis::RedisStore;
use limiter_testkit::conformance::{Case, replay};
use limiter_testkit::{ReferenceEntry, ReferenceStore, strategy};
use proptest::prelude::Strategy;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use sim::Direct;
use testbed::server::Server;
use tokio::runtime::Runtime;

use crate::simulated::on_both;
use crate::support::{at, calls, db_size, limited, members, reset_calls, size};

const SECOND: u64 = 1_000_000;

/// The number in these bytes.
fn number(bytes: &[u8]) -> u64 {
    let digit = |number, byte: &u8| number << 8 | u64::from(*byte);
    bytes.iter().fold(0, digit)
}

/// The entries that Redis holds, oldest first, and the number of callers' ids.
fn held(server: &Server, store: &RedisStore, log: LogKey<'_>) -> (Vec<Vec<u8>>, usize) {
    let (ids, entries): (Vec<_>, Vec<_>) = members(server, store, log)
        .into_iter()
        .partition(|member| member[0] == b'i');
    (entries, ids.len())
}

/// The time and the cost of an entry.
fn read(entry: &[u8]) -> (Timestamp, u64) {
    let lengths = if entry[7] < 128 { [33, 33] } else { [30, 42] };
    let has_cost = lengths.contains(&entry.len());
    let cost = has_cost.then(|| number(&entry[entry.len() - 7..]));
    let time = number(&entry[..7]) + (1 << 53) - (1 << 56);
    (Timestamp::from_micros(time).unwrap(), cost.unwrap_or(1))
}

/// A key, and an entry's id and time.
type Place = (Vec<u8>, EntryId, Timestamp);

/// Of each key, the number of callers' ids and the newest entry.
type Last = HashMap<Vec<u8>, (usize, Vec<u8>)>;

/// Redis, and the reference store next to it: after each operation, both hold the same.
#[derive(Debug)]
struct Both {
    server: Arc<Server>,
    redis: RedisStore,
    reference: ReferenceStore,
    /// The reference store's ids of Redis' entries.
    ids: Mutex<HashMap<Place, EntryId>>,
    last: Mutex<Last>,
    /// Whether short entries can hold all costs and times.
    is_small: bool,
    /// How many operations removed no entry, one, two, or more.
    removed: Arc<Mutex<[u64; 4]>>,
}

impl Both {
    fn pair(&self, log: LogKey<'_>, of_redis: Entry, of_reference: Entry) {
        let place = (self.redis.redis_key(log), of_redis.id, of_redis.at);
        self.ids.lock().unwrap().insert(place, of_reference.id);
    }

    /// Compares what both hold. `is_plain` is true after an append without an id.
    fn compare(&self, log: LogKey<'_>, before: usize, is_plain: bool, what: &str) {
        let (entries, ids) = held(&self.server, &self.redis, log);
        let read: Vec<_> = entries.iter().map(|entry| read(entry)).collect();
        let reference = self.reference.entries(log);
        let expected = reference.iter().map(|entry| (entry.at, entry.cost));
        assert_eq!(read, expected.collect::<Vec<_>>(), "{what}");
        // Ids of entries that are gone leave with later appends.
        let has_id = |entry: &&ReferenceEntry| entry.callers_id.is_some();
        let least = reference.iter().filter(has_id).count();
        let is_right = ids >= least && (ids == 0 || !reference.is_empty());
        assert!(is_right, "{ids} ids after {what}");
        // The fast path works on short entries alone.
        let newest = entries.last().cloned().unwrap_or_default();
        let now = (ids, newest.clone());
        let mut last = self.last.lock().unwrap();
        let (ids, last) = last
            .insert(self.redis.redis_key(log), now)
            .unwrap_or_default();
        let follows_long = last.get(7) >= Some(&128) && last.get(..7) == newest.get(..7);
        if is_plain && self.is_small && ids == 0 && !follows_long {
            let is_shortest = newest[7] < 128 || number(&newest[9..16]) >= 1 << 39;
            assert!(is_shortest, "a long entry after {what}");
        }
        let removed = before.saturating_sub(reference.len());
        self.removed.lock().unwrap()[removed.min(3)] += 1;
    }
}

#[async_trait]
impl WindowStore for Both {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let before = self.reference.entries(op.log).len();
        let facts = self.redis.apply(op).await?;
        let expected = self.reference.apply(op).await?;
        let entry = |facts: &Facts| match facts.outcome {
            Outcome::Appended(entry) => Some((entry, 1)),
            Outcome::Repeated { entry, .. } => Some((entry, 0)),
            _ => None,
        };
        let of = [entry(&facts), entry(&expected)];
        let mut count = before;
        if let [Some((of_redis, _)), Some((of_reference, appended))] = of {
            self.pair(op.log, of_redis, of_reference);
            count += appended;
        }
        let is_plain = count > before && op.id.is_none();
        self.compare(op.log, count, is_plain, &format!("{op:?}"));
        Ok(facts)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let before = self.reference.entries(settlement.log).len();
        let facts = self.redis.settle(settlement).await?;
        let receipt = settlement.receipt;
        let place = (
            self.redis.redis_key(settlement.log),
            receipt.entry(),
            receipt.at(),
        );
        let id = self.ids.lock().unwrap().get(&place).copied();
        let mut translated = settlement;
        translated.receipt = Receipt::new(
            id.unwrap_or(receipt.entry()),
            receipt.at(),
            receipt.window(),
        );
        let expected = self.reference.settle(translated).await?;
        if let (Some(of_redis), Some(of_reference)) = (facts.changed, expected.changed) {
            self.pair(settlement.log, of_redis.entry, of_reference.entry);
        }
        let what = format!("{settlement:?}");
        self.compare(settlement.log, before, false, &what);
        Ok(facts)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let _ = self.reference.reset(log).await?;
        self.last.lock().unwrap().remove(&self.redis.redis_key(log));
        self.redis.reset(log).await
    }
}

/// Returns the case with greater costs and longer windows, by so many bits: what a short entry cannot hold.
fn stretched(mut case: Case, costs: u32, times: u32) -> Case {
    if (costs, times) == (0, 0) {
        return case;
    }
    for policy in &mut case.policies {
        let limit = |of: &Limit| {
            let window = of.window().as_micros().saturating_mul(1 << times);
            let window = Window::from_micros(window.min(Window::MAX.as_micros())).unwrap();
            let max = of.max().saturating_mul(1 << costs).min(MAX_COST);
            let exact = Limit::with_window(max, window).unwrap();
            let resolution = of.resolution().filter(|_| times == 0);
            resolution.map_or(exact, |it| exact.with_resolution(it).unwrap())
        };
        let limits: Vec<Limit> = policy.limits().iter().map(limit).collect();
        let stretched = Policy::new(limits.iter().copied()).unwrap_or(limits[0].into());
        *policy = stretched.with_counting(policy.counting());
    }
    // Far from the last time, which stands still.
    case.start = if times > 0 { 0 } else { case.start };
    for step in &mut case.steps {
        step.cost = step.cost.saturating_mul(1 << costs);
        step.after = step.after.saturating_mul(1 << times);
    }
    case
}

/// The bits by which costs and times are stretched. The last costs let the running totals reach their end, where they go on from 0.
const STRETCHES: [(u32, u32); 6] = [(0, 0), (0, 0), (36, 0), (0, 38), (47, 0), (49, 0)];

/// Policies of a log vary, entries with ids lie between others, and time moves by microseconds, by windows and by minutes, and back.
/// The simulated server does the same.
#[test]
fn redis_holds_exactly_what_the_reference_holds() {
    let runtime = Runtime::new().unwrap();
    let server = Arc::new(Server::start().unwrap());
    let simulated = Direct::default();
    let removed = Arc::new(Mutex::new([0; 4]));
    let config = Config {
        cases: size(200, 400),
        max_shrink_iters: 2_000,
        ..Config::with_source_file(file!())
    };
    let cases = (strategy::cases(1..=200), select(&STRETCHES[..]));
    let cases = cases.prop_map(|(case, (costs, times))| {
        let is_small = (costs, times) == (0, 0);
        (stretched(case, costs, times), is_small)
    });
    let runs = AtomicU64::new(0);
    let compared = TestRunner::new(config).run(&cases, |(case, is_small)| {
        let store = Both {
            server: Arc::clone(&server),
            redis: runtime.block_on(on_both(&server, &simulated)),
            reference: ReferenceStore::new(),
            ids: Mutex::default(),
            last: Mutex::default(),
            is_small,
            removed: Arc::clone(&removed),
        };
        // A failed case leaves its keys behind.
        let run = runs.fetch_add(1, Ordering::Relaxed);
        let keys = |k| format!("{run} {k}").into_bytes();
        let replayed = runtime.block_on(replay(&Arc::new(store), &case, keys));
        replayed.map_err(|mismatch| TestCaseError::fail(mismatch.to_string()))
    });
    assert!(compared.is_ok(), "{}", compared.unwrap_err());
    let removed = removed.lock().unwrap();
    println!("{removed:?}");
    assert!(removed.iter().all(|times| *times > 100), "{removed:?}");
    assert_eq!(db_size(&server), 0);
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
        let limiter = limited(&server, policy).await;
        let log = LogKey::new(limiter.name(), "k");
        let ids = || held(&server, limiter.store(), log).1 as u64;
        for first in (0..IDS).step_by(50) {
            // From the last on, so that the oldest entry has the id that sorts last.
            let record = |n| {
                let id = u128::from(IDS - n);
                limiter
                    .record("k")
                    .at(at(n * step))
                    .idempotency_key(id)
                    .into_future()
            };
            reset_calls(&server);
            for done in join_all((first..first + 50).map(record)).await {
                assert!(done.unwrap().appended());
            }
            let searches = calls(&server)["zrangebylex"];
            assert!(searches <= 100, "{searches} by 50 appends after {first}");
        }
        let mut left = IDS;
        assert_eq!(ids(), left);
        for minute in 15..18 {
            let time = at(minute * 60 * SECOND);
            let receipt = limiter.record("k").at(time).await.unwrap().receipt();
            assert!(ids() < left, "{left} and no fewer");
            left = ids();
            if refunds {
                let refund = limiter.refund("k", receipt.unwrap()).at(time);
                assert!(refund.await.unwrap().applied());
                break;
            }
        }
        assert!(left == 0 || refunds && db_size(&server) == 0, "{left}");
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
        let limiter = limited(&server, policy).await;
        let key = limit.to_string();
        let step = limit.window().as_micros() / cells / in_each;
        let cost = limit.max() / cells / in_each;
        for n in 0..3 * cells * in_each {
            let record = limiter.record(&key).cost(cost).at(at(n * step));
            let _ = record.await.unwrap();
        }
        let log = LogKey::new(limiter.name(), &*key);
        let inspected = limiter.store().inspect(log).await.unwrap();
        let entries = inspected.unwrap().entries;
        // Unless told to look at all entries, Redis extrapolates from five, whose sizes are random in a skip list.
        let stored = limiter.store().redis_key(log);
        let usage: [&[u8]; 5] = [b"MEMORY", b"USAGE", &stored, b"SAMPLES", b"0"];
        let bytes = server.command::<i64>(&usage).unwrap();
        println!("{limit}: {entries} entries, {bytes} bytes");
        assert!(
            (cells..=most_entries).contains(&entries) && bytes <= most_bytes,
            "{limit}"
        );
    }
}
