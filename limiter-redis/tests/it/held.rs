//! What Redis holds of a log: after each random operation exactly what the reference store holds, in entries of the shortest form and
//! in few bytes, read and written with few commands.

use std::cell::RefCell;

use futures::future::join_all;
use limiter_core::store::{Change, LogKey, Mode, Op, Settlement, SettlementFacts};
use limiter_core::{
    Counting, MAX_COST, Name, Policy, Receipt, Settled, Timestamp, WindowStore, policy,
};
use limiter_redis::RedisStore;
use limiter_testkit::{DecisionValues, ReferenceEntry, ReferenceStore};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use redis::Cmd;
use sim::Direct;
use testbed::server::Server;
use tokio::runtime::Runtime;

use crate::simulated::on_both;
use crate::support::{
    START, at, calls, connect, db_size, inspected, limit, limited, members, reset_calls, run, size,
};

const SECOND: u64 = 1_000_000;
const WINDOW: u64 = 1_000;
/// From this running total on an entry is long, and from this age of the first entry.
const TOTAL: u64 = 1 << 39;
const AGE: u64 = 1 << 48;

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

/// What the operations on a log are drawn from.
#[derive(Clone)]
struct Kind {
    /// Each log sees three of them, as policies of operations and of limiters.
    policies: Vec<Policy>,
    costs: Vec<u64>,
    /// From one operation to the next, time moves by some of these units. Once in a while it is this many units behind.
    steps: Vec<u64>,
    unit: u64,
    back: u64,
    /// Operations come this many microseconds after a unit begins.
    micros: Vec<u64>,
    /// One operation of this many has an id.
    ids: u32,
    /// The maximum number of operations.
    length: usize,
    /// The running total comes close to its end, where it goes on from 0.
    laps: bool,
}

/// Returns the policies between semicolons. Every third counts attempts.
fn policies(text: &str) -> Vec<Policy> {
    let policy = |(n, text): (usize, &str)| {
        let policy: Policy = text.parse().unwrap();
        let counting = if n % 3 == 0 {
            Counting::Attempts
        } else {
            Counting::Admitted
        };
        policy.with_counting(counting)
    };
    text.split("; ").enumerate().map(policy).collect()
}

fn kinds() -> [Kind; 5] {
    let coarse = Kind {
        policies: policies(
            "9/1s, 25/15m~1s; 9/40s~10s; 40/30m~1m, 6/60s; 20/1h~10m; 60/20m~10m, 9/3m; 30/6m~10s; 9/30s; \
             4503599627370496/30m~1m; 1000/1h",
        ),
        costs: vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, TOTAL - 2, MAX_COST],
        steps: vec![0, 0, 0, 0, 0, 0, 1, 1, 3, 11, 45, 420],
        unit: SECOND,
        back: 30,
        micros: vec![0, 0, 0, 1, 2, SECOND - 1],
        ids: 6,
        length: 500,
        laps: false,
    };
    let exact = Kind {
        policies: policies("9/30s; 9/200s; 30/8m; 9/2m; 12/40m, 6/80m; 4503599627370496/4h"),
        ..coarse.clone()
    };
    // What a short entry cannot hold.
    let extreme = Kind {
        policies: policies(
            "3/10us, 65540/562949953421312us; 65535/10us, 9/1ms; 549755813892/562949953421312us; \
             549755813888/10us; 65536/1ms, 4503599627370496/10us; 9/1ms, 65540/562949953421312us",
        ),
        costs: vec![
            1,
            1,
            1,
            1,
            2,
            5,
            65_533,
            65_534,
            65_535,
            TOTAL - 3,
            TOTAL,
            MAX_COST,
        ],
        steps: vec![0, 0, 0, 1, 1, 9, 10, 11, WINDOW, AGE - 1, AGE, AGE + 1],
        unit: 1,
        back: 1,
        micros: vec![0],
        ids: 60,
        length: 60,
        laps: false,
    };
    // Over a hundred entries, usually of the fast path, and limits that see further or less far, by time and by cost.
    let long = Kind {
        policies: policies(
            "150/500us; 40/30us, 250/2ms; 200/120us, 90/500us; 65600/300us; 20/2ms; 70000/2ms, 1000/60us; \
             90/500us; 250/2ms~10us, 40/30us; 150/500us~1us",
        ),
        costs: [&[1; 18][..], &[2, 3, 500, 2_500]].concat(),
        steps: vec![0, 1, 2, 3, 4],
        ids: u32::MAX,
        length: 700,
        ..extreme.clone()
    };
    let meter = Kind {
        policies: policies(
            "4503599627370496/1ms, 9/300us; 4503599627370496/200us; 4503599627370496/1ms",
        ),
        costs: vec![1 << 51, 1, 2, 3],
        steps: vec![0, 1, 2, 3],
        ids: 4,
        length: 400,
        laps: true,
        ..extreme.clone()
    };
    [coarse, exact, extreme, long, meter]
}

/// Moves the running totals of four entries, of `4 << 47` in all, so that they end this many units before the largest.
fn move_totals(server: &Server, simulated: &Direct, key: &[u8], left: u64) {
    let held: Vec<Vec<u8>> = server.command(&[b"ZRANGE", key, b"0", b"-1"]).unwrap();
    for member in held {
        assert!(member[7] >= 128, "an entry is short");
        let total = number(&member[9..16]) + (1 << 53) - (4 << 47) - left;
        let moved = [&member[..9], &total.to_be_bytes()[1..], &member[16..]].concat();
        let send = |words: &[&[u8]]| {
            server.command::<()>(words).unwrap();
            simulated.execute(Cmd::new().arg(words)).unwrap();
        };
        send(&[b"ZADD", key, b"0", &moved]);
        send(&[b"ZREM", key, &member]);
    }
}

/// How often an append removed 0, 1, 2 and more entries, and how many operations repeated others.
#[derive(Debug, Default)]
struct Seen {
    removed: [u64; 4],
    repeated: u64,
    renewed: u64,
}

/// An operation, before the policies of its log are known, and what follows it.
#[derive(Clone, Copy, Debug)]
struct Draft {
    units: u64,
    behind: u64,
    micros: u64,
    policy: Index,
    limiter_policy: Option<Index>,
    cost: u64,
    mode: Mode,
    id: Option<u128>,
    /// How often it is made.
    alike: u8,
    /// Which of the latest receipts is settled then, to which cost, and whether it is renewed instead. `None` is the operation's cost.
    settlement: Option<(Index, Option<u64>, bool)>,
}

fn draft(kind: &Kind) -> impl Strategy<Value = Draft> + use<> {
    const MODES: [Mode; 5] = [
        Mode::Record,
        Mode::Acquire,
        Mode::Acquire,
        Mode::Acquire,
        Mode::Peek,
    ];
    const SETTLED_TO: [Option<u64>; 5] = [Some(0), Some(0), Some(1), Some(2), None];
    let time = (
        select(kind.steps.clone()),
        prop_oneof![7 => Just(0), 1 => 0..kind.back],
        select(kind.micros.clone()),
    );
    let policies = (any::<Index>(), option::of(any::<Index>()));
    let id = prop_oneof![kind.ids - 1 => Just(None), 1 => (0..5_u128).prop_map(Some)];
    let renews = prop_oneof![2 => Just(false), 1 => Just(true)];
    let settlement = (any::<Index>(), select(&SETTLED_TO[..]), renews);
    let draft = (
        time,
        policies,
        select(kind.costs.clone()),
        select(&MODES[..]),
        id,
        prop_oneof![11 => Just(1), 1 => 1..7_u8],
        option::weighted(0.2, settlement),
    );
    draft.prop_map(
        |((units, behind, micros), policies, cost, mode, id, alike, settlement)| Draft {
            units,
            behind,
            micros,
            policy: policies.0,
            limiter_policy: policies.1,
            cost,
            mode,
            id,
            alike,
            settlement,
        },
    )
}

/// Operations on one log.
#[derive(Clone, Debug)]
struct Sequence {
    policies: Vec<Policy>,
    start: u64,
    /// Where the running total begins, if it comes close to its end.
    left: Option<u64>,
    unit: u64,
    drafts: Vec<Draft>,
}

fn sequence(kind: &Kind) -> impl Strategy<Value = Sequence> + use<> {
    let starts = [START, 0, Timestamp::MAX.as_micros() - 20_000 * SECOND];
    let left = if kind.laps {
        select(vec![Some(5), Some(1 << 48)])
    } else {
        select(vec![None])
    };
    let unit = kind.unit;
    let length = kind.length;
    let sequence = (
        vec(select(kind.policies.clone()), 3),
        select(starts.to_vec()),
        left,
        vec(draft(kind), 1..=length),
    );
    sequence.prop_map(move |(policies, start, left, drafts)| Sequence {
        policies,
        start,
        left,
        unit,
        drafts,
    })
}

impl Draft {
    fn op<'a>(&self, policies: &'a [Policy], time: Timestamp) -> Op<'a> {
        let policy = self.policy.get(policies);
        let mut op = Op::record("k", policy).with_cost(self.cost).at(time);
        if let Some(default) = &self.limiter_policy {
            op = op.with_limiter_policy(default.get(policies));
        }
        if let Some(id) = self.id
            && op.receipt_window().is_some()
        {
            op = op.with_id(id);
        }
        if self.cost <= policy.smallest_max() {
            op.mode = self.mode;
        }
        op
    }
}

/// Returns an error with a context if two values differ.
macro_rules! same {
    ($got:expr, $expected:expr, $context:expr) => {{
        let got = $got;
        let expected = $expected;
        if got != expected {
            return Err(format!(
                "{}: expected {expected:?}, found {got:?}",
                $context
            ));
        }
    }};
}

/// Runs operations on one log of Redis and of the reference store.
async fn compare(
    (server, simulated, redis): (&Server, &Direct, &RedisStore),
    sequence: &Sequence,
    seen: &mut Seen,
) -> Result<(), String> {
    let reference = ReferenceStore::new();
    let log = LogKey::new(Name::default(), "k");
    let policies = &sequence.policies;
    let start = sequence.start;
    // An earlier sequence may have failed.
    redis.reset(log).await.unwrap();
    if let Some(left) = sequence.left {
        // Costs so great that the entries are long.
        for n in 0..4 {
            let op = Op::record("k", &policies[0]).with_cost(1 << 47);
            let op = op.at(Timestamp::from_micros_saturating(start + n));
            assert!(run(&reference, op).await.unwrap().appended());
            assert!(run(redis, op).await.unwrap().appended());
        }
        move_totals(server, simulated, &redis.redis_key(log), left);
    }
    let mut units = 0;
    let mut receipts = Vec::<(Receipt, Receipt)>::new();
    let expect = |what: &str| {
        let (entries, ids) = held(server, redis, log);
        let read: Vec<_> = entries.iter().map(|entry| read(entry)).collect();
        let reference = reference.entries(log);
        let expected: Vec<_> = reference
            .iter()
            .map(|entry| (entry.at, entry.cost))
            .collect();
        let count = expected.len();
        same!(read, expected, what);
        // Ids of entries that are gone leave with later appends.
        let has_id = |entry: &&ReferenceEntry| entry.callers_id.is_some();
        let least = reference.iter().filter(has_id).count();
        let is_right = ids >= least && (ids == 0 || count > 0);
        same!(is_right, true, format!("{ids} ids, {what}"));
        Ok(count)
    };
    for draft in &sequence.drafts {
        units += draft.units;
        let behind = units.saturating_sub(draft.behind);
        let time = start + behind * sequence.unit + draft.micros;
        let time = Timestamp::from_micros_saturating(time);
        let op = draft.op(policies, time);
        let context = format!("{op:?}");
        let before = reference.entries(log).len();
        let mut appended = 0;
        for _ in 0..draft.alike {
            let got = run(redis, op).await.unwrap();
            let expected = run(&reference, op).await.unwrap();
            same!(
                DecisionValues::from(&got),
                DecisionValues::from(&expected),
                context
            );
            same!(got.appended(), expected.appended(), context);
            appended += usize::from(got.appended());
            // Once its entry is forgotten, an id may come again at one time. An older receipt then matches the new entry.
            let again = (op.id, got.at());
            receipts.retain(|(mine, _)| (Some(mine.entry()), mine.at()) != again);
            let of = [got.receipt(), expected.receipt()];
            same!(of[0].is_some(), of[1].is_some(), context);
            let [Some(of_redis), Some(of_reference)] = of else {
                continue;
            };
            receipts.push((of_redis, of_reference));
            if of_redis.at() < got.at() {
                seen.repeated += 1;
                appended -= 1;
            }
        }
        let removed = before + appended - expect(&context)?;
        seen.removed[removed.min(3)] += u64::from(appended > 0);
        if let Some((index, cost, renews)) = draft.settlement
            && !receipts.is_empty()
            && time < Timestamp::MAX
        {
            let latest = receipts.len().saturating_sub(12);
            let latest = latest + index.index(receipts.len() - latest);
            let (of_redis, of_reference) = receipts.remove(latest);
            let cost = cost.unwrap_or(op.cost);
            let renews = renews && op.receipt_window().is_some();
            let settle = |receipt| {
                let mut settlement = Settlement::new(log, &policies[0], receipt, cost).at(time);
                if renews {
                    (settlement.policy, settlement.limiter_policy) = (op.policy, op.limiter_policy);
                    settlement.change = Change::Renew { id: None };
                }
                settlement
            };
            let got = redis.settle(settle(of_redis)).await.unwrap();
            let expected = reference.settle(settle(of_reference)).await.unwrap();
            let told = |facts: &SettlementFacts| {
                let used: Vec<u64> = facts.log.usage.iter().map(|usage| usage.used).collect();
                let changed = facts
                    .changed
                    .map(|changed| (changed.cost_before, changed.entry.at));
                (changed, facts.log.newest, used)
            };
            let what = if renews { "renewed" } else { "settled" };
            let context = format!("{what} to {cost} after {context}");
            same!(told(&got), told(&expected), context);
            let receipt = |facts, of| Settled::new(&settle(of), facts).receipt();
            let renewed = (receipt(got, of_redis), receipt(expected, of_reference));
            if let (true, (Some(of_redis), Some(of_reference))) = (renews, renewed) {
                receipts.retain(|(mine, _)| mine != &of_redis);
                receipts.push((of_redis, of_reference));
                seen.renewed += 1;
            }
            expect(&context)?;
        }
    }
    redis.reset(log).await.unwrap();
    Ok(())
}

/// Policies of a log vary, entries with ids lie between others, and time moves by microseconds, by windows and by minutes, and back.
/// The simulated server does the same.
#[test]
fn redis_holds_exactly_what_the_reference_holds() {
    let runtime = Runtime::new().unwrap();
    let server = Server::start().unwrap();
    let simulated = Direct::default();
    let redis = runtime.block_on(on_both(&server, &simulated));
    let seen = RefCell::new(Seen::default());
    for kind in kinds() {
        let config = Config {
            cases: size(36, 72),
            max_shrink_iters: 2_000,
            ..Config::with_source_file(file!())
        };
        let compared = TestRunner::new(config).run(&sequence(&kind), |sequence| {
            let stores = (&server, &simulated, &redis);
            let mut seen = seen.borrow_mut();
            let compared = runtime.block_on(compare(stores, &sequence, &mut seen));
            compared.map_err(TestCaseError::fail)
        });
        assert!(compared.is_ok(), "{}", compared.unwrap_err());
    }
    let seen = seen.into_inner();
    println!("{seen:?}");
    let often = seen.removed.iter().all(|times| *times > 200) && seen.repeated > 30;
    let often = often && seen.renewed > 200;
    assert!(often, "{seen:?}");
    assert_eq!(db_size(&server), 0);
}

/// Operations on one log, each with the lengths of the entries afterwards, oldest first. The fast path works on short entries alone: of 26
/// bytes, or of 33 with a cost. Long ones have 23, 30 with a cost and 35 with an id. Records have windows of 1 ms. Each of 300 attempts comes
/// 1 us after the one before, and from the sixth on is denied and replaces the oldest.
const FORMS: &str = "
record 1 at 0             | 26
record 7 at 0             | 26 33
record 1 at 1000          | 26
record with an id at 1000 | 26 35
record 1 at 1001          | 26 35 23
record 1 at 2000          | 23 23
record 1 at 2001          | 23 26
reset
300 attempts of 5/100us   | 26 26 26 26 26
record 1 at 299           | 26 26 26 26 26 26
record 1 at 300           | 26 26 26 26 26 26 26
reset
record 549755813886 at 0  | 33
record 1 at 0             | 33 26
record 1 at 0             | 33 26 23
record 1 at 1             | 33 26 23 23
record 1 at 1001          | 26
record 1 at 1001          | 26 26
reset
acquire 100/562949953421312us at 0               | 26
acquire 100/562949953421312us at 281474976710655 | 26 26
acquire 100/562949953421312us at 281474976710656 | 26 26 23
reset
record 1 at 0             | 26
record 1 at 1             | 26 26
record 1 at 2             | 26 26 26
record 1 at 3             | 26 26 26 26
settle 2 to 5             | 26 26 30 23
settle 3 to 0             | 26 26 30
settle 2 to 0             | 26 23
settle 0 to 0             | 23
record 1 at 1             | 23 23
record 1 at 2             | 23 23 26
";

#[tokio::test]
async fn an_entry_is_short_if_that_form_can_hold_it() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let meter = limit(MAX_COST, WINDOW).into();
    let log = LogKey::new(Name::default(), "k");
    let lengths = || -> Vec<usize> {
        let (entries, _) = held(&server, &store, log);
        entries.iter().map(Vec::len).collect()
    };
    let mut receipts = Vec::new();
    for row in FORMS.lines().skip(1) {
        let (step, expected) = row.split_once('|').unwrap_or((row, ""));
        let words: Vec<&str> = step.split_whitespace().collect();
        let number = |word: usize| words[word].parse::<u64>().unwrap();
        match words[..] {
            ["reset"] => {
                receipts.clear();
                assert!(store.reset(log).await.unwrap());
            }
            ["settle", _, "to", _] => {
                let receipt: Receipt = receipts[number(1) as usize];
                let settlement = Settlement::new(log, &meter, receipt, number(3));
                let settled = store.settle(settlement.at(receipt.at())).await;
                assert!(settled.unwrap().applied(), "{row}");
            }
            [_, "attempts", "of", text] => {
                let attempts = text.parse::<Policy>().unwrap();
                let attempts = attempts.with_counting(Counting::Attempts);
                for n in 0..number(0) {
                    let op = Op::acquire("k", &attempts).at(at(n));
                    assert_eq!(run(&store, op).await.unwrap().is_allowed(), n < 5, "{n}");
                    let expected = vec![26; 5.min(n as usize + 1)];
                    assert_eq!(lengths(), expected, "after attempt {n}");
                }
            }
            ["acquire", text, "at", _] => {
                let policy = text.parse().unwrap();
                let op = Op::acquire("k", &policy).at(at(number(3)));
                assert!(run(&store, op).await.unwrap().is_allowed(), "{row}");
            }
            _ => {
                let op = match words[1] {
                    "with" => Op::record("k", &meter).with_id(1_u128),
                    _ => Op::record("k", &meter).with_cost(number(1)),
                };
                let decision = run(&store, op.at(at(number(words.len() - 1)))).await;
                receipts.extend(decision.unwrap().receipt());
            }
        }
        let expected: Vec<usize> = expected
            .split_whitespace()
            .map(|length| length.parse().unwrap())
            .collect();
        assert_eq!(lengths(), expected, "{row}");
    }
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
        let entries = inspected(&limiter, &key).await.0;
        // Unless told to look at all entries, Redis extrapolates from five, whose sizes are random in a skip list.
        let stored = limiter
            .store()
            .redis_key(LogKey::new(limiter.name(), &*key));
        let usage: [&[u8]; 5] = [b"MEMORY", b"USAGE", &stored, b"SAMPLES", b"0"];
        let bytes = server.command::<i64>(&usage).unwrap();
        println!("{limit}: {entries} entries, {bytes} bytes");
        assert!(
            (cells..=most_entries).contains(&entries) && bytes <= most_bytes,
            "{limit}"
        );
    }
}
