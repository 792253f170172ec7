//! What Redis holds of a log: after each random operation exactly what the reference store holds, in entries of the shortest form and
//! in few bytes, read and written with few commands.

use fastrand::Rng;
use futures::future::join_all;
use limiter_core::store::{Change, LogKey, Mode, Op, Settlement, SettlementFacts};
use limiter_core::{
    Counting, Decision, MAX_COST, Name, Policy, Receipt, Settled, Timestamp, WindowStore, policy,
};
use limiter_redis::RedisStore;
use limiter_testkit::{Answer, ReferenceStore};
use redis::Cmd;
use sim::Direct;
use testbed::server::Server;

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
    /// From one operation to the next, time moves by some of these units. Once in a while it is so many units behind.
    steps: Vec<u64>,
    unit: u64,
    back: u64,
    /// Operations come so many microseconds after a unit begins.
    micros: Vec<u64>,
    /// One operation of so many has an id.
    ids: u64,
    length: u64,
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
        length: 250,
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
        length: 30,
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
        ids: u64::MAX,
        length: 350,
        ..extreme.clone()
    };
    let meter = Kind {
        policies: policies(
            "4503599627370496/1ms, 9/300us; 4503599627370496/200us; 4503599627370496/1ms",
        ),
        costs: vec![1 << 51, 1, 2, 3],
        steps: vec![0, 1, 2, 3],
        ids: 4,
        length: 200,
        laps: true,
        ..extreme.clone()
    };
    [coarse, exact, extreme, long, meter]
}

/// Moves the running totals of four entries, of `4 << 47` in all, so that they end so many units before the largest.
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

/// Returns a random operation on the key `k` with these policies, for a time.
fn random_op<'a>(
    kind: &Kind,
    policies: &[&'a Policy],
    time: Timestamp,
    random: &mut Rng,
) -> Op<'a> {
    let policy = |random: &mut Rng| policies[random.usize(..policies.len())];
    let cost = kind.costs[random.usize(..kind.costs.len())];
    let mut op = Op::record("k", policy(random)).with_cost(cost).at(time);
    if random.bool() {
        op = op.with_limiter_policy(policy(random));
    }
    if random.u64(..kind.ids) == 0 && op.receipt_window().is_some() {
        op = op.with_id(random.u128(..5));
    }
    if cost <= op.policy.smallest_max() {
        let modes = [
            Mode::Record,
            Mode::Acquire,
            Mode::Acquire,
            Mode::Acquire,
            Mode::Peek,
        ];
        op.mode = modes[random.usize(..5)];
    }
    op
}

/// Runs random operations on one log of Redis and of the reference store.
async fn compare(
    (server, simulated, redis): (&Server, &Direct, &RedisStore),
    (kind, start): (Kind, u64),
    random: &mut Rng,
    seen: &mut Seen,
) {
    let (reference, log) = (ReferenceStore::new(), LogKey::new(Name::default(), "k"));
    let policies = [(); 3].map(|()| &kind.policies[random.usize(..kind.policies.len())]);
    if kind.laps {
        // Costs so great that the entries are long.
        for n in 0..4 {
            let op = Op::record("k", policies[0]).with_cost(1 << 47);
            let op = op.at(Timestamp::from_micros_saturating(start + n));
            assert!(run(&reference, op).await.unwrap().appended());
            assert!(run(redis, op).await.unwrap().appended());
        }
        let left = if random.bool() { 5 } else { 1 << 48 };
        move_totals(server, simulated, &redis.redis_key(log), left);
    }
    let (mut units, mut receipts) = (0, Vec::<(Receipt, Receipt)>::new());
    for n in 0..kind.length {
        units += random.choice(&kind.steps).unwrap();
        let behind = if random.u8(..8) == 0 {
            random.u64(..kind.back)
        } else {
            0
        };
        let micros = random.choice(&kind.micros).unwrap();
        let time = start + units.saturating_sub(behind) * kind.unit + micros;
        let time = Timestamp::from_micros_saturating(time);
        let op = random_op(&kind, &policies, time, random);
        let context = format!("{start}, {n}: {op:?}");
        // Sometimes a run of alike ones.
        let alike = if random.u8(..12) == 0 {
            random.u8(1..7)
        } else {
            1
        };
        let (before, mut appended) = (reference.entries(log).len(), 0);
        for _ in 0..alike {
            let got = run(redis, op).await.unwrap();
            let expected = run(&reference, op).await.unwrap();
            assert_eq!(Answer::from(&got), Answer::from(&expected), "{context}");
            assert_eq!(got.appended(), expected.appended(), "{context}");
            appended += usize::from(got.appended());
            let of = [got.receipt(), expected.receipt()];
            assert_eq!(of[0].is_some(), of[1].is_some(), "{context}");
            let [Some(of_redis), Some(of_reference)] = of else {
                continue;
            };
            // An id may come again at one time. An older receipt then matches the new entry.
            let name = |receipt: &Receipt| (receipt.entry(), receipt.at());
            receipts.retain(|(mine, theirs)| {
                name(mine) != name(&of_redis) || name(theirs) == name(&of_reference)
            });
            receipts.push((of_redis, of_reference));
            if of_redis.at() < got.at() {
                seen.repeated += 1;
                appended -= 1;
            }
        }
        let expect = |what: &str| {
            let (entries, ids) = held(server, redis, log);
            let read: Vec<_> = entries.iter().map(|entry| read(entry)).collect();
            let reference = reference.entries(log);
            let expected: Vec<_> = reference
                .iter()
                .map(|entry| (entry.at, entry.cost))
                .collect();
            assert_eq!(read, expected, "{what} {context}");
            // Ids of entries that are gone leave with later appends.
            let least = reference.iter().filter(|entry| entry.id.is_some()).count();
            let is_right = ids >= least && (ids == 0 || !read.is_empty());
            assert!(is_right, "{ids} ids, {what} {context}");
            read.len()
        };
        let removed = before + appended - expect("applied");
        seen.removed[removed.min(3)] += u64::from(appended > 0);
        if random.u8(..5) == 0 && !receipts.is_empty() && time < Timestamp::MAX {
            let latest = random.usize(receipts.len().saturating_sub(12)..receipts.len());
            let (of_redis, of_reference) = receipts.remove(latest);
            let cost = random.choice([0, 0, 1, 2, op.cost]).unwrap();
            let renews = random.u8(..3) == 0 && op.receipt_window().is_some();
            let settle = |receipt| {
                let mut settlement = Settlement::new(log, policies[0], receipt, cost).at(time);
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
            assert_eq!(
                told(&got),
                told(&expected),
                "{what} to {cost} after {context}"
            );
            let receipt = |facts, of| Settled::new(&settle(of), facts).receipt();
            let renewed = (receipt(got, of_redis), receipt(expected, of_reference));
            if let (true, (Some(of_redis), Some(of_reference))) = (renews, renewed) {
                receipts.retain(|(mine, _)| mine != &of_redis);
                receipts.push((of_redis, of_reference));
                seen.renewed += 1;
            }
            expect("settled after");
        }
    }
    redis.reset(log).await.unwrap();
}

/// Policies of a log vary, entries with ids lie between others, and time moves by microseconds, by windows and by minutes, and back.
/// The simulated server does the same. `LIMITER_SEED` sets other ones.
#[tokio::test]
async fn redis_holds_exactly_what_the_reference_holds() {
    let (server, simulated) = (Server::start().unwrap(), Direct::default());
    let redis = on_both(&server, &simulated).await;
    let seed = std::env::var("LIMITER_SEED").map_or(28, |seed| seed.parse().unwrap());
    let (mut random, mut seen) = (Rng::with_seed(seed), Seen::default());
    for round in 0..size(36, 300) {
        let start = [START, 0, Timestamp::MAX.as_micros() - 20_000 * SECOND][round % 3];
        for kind in kinds() {
            let stores = (&server, &simulated, &redis);
            compare(stores, (kind, start), &mut random, &mut seen).await;
        }
    }
    println!("{seen:?}");
    let often = seen.removed.iter().all(|times| *times > 200) && seen.repeated > 30;
    let often = often && seen.renewed > 200;
    assert!(often, "{seen:?}");
    assert_eq!(db_size(&server), 0);
}

/// The log of the key `k`, for operations without a limiter.
struct Log {
    server: Server,
    store: RedisStore,
    meter: Policy,
}

impl Log {
    fn key(&self) -> LogKey<'static> {
        LogKey::new(Name::default(), "k")
    }

    async fn run(&self, op: Op<'_>, time: u64) -> Decision {
        run(&self.store, op.at(at(time))).await.unwrap()
    }

    async fn record(&self, cost: u64, time: u64) -> Receipt {
        let op = Op::record("k", &self.meter).with_cost(cost);
        self.run(op, time).await.receipt().unwrap()
    }

    /// Settles at the time of the entry.
    async fn settle(&self, receipt: Receipt, cost: u64) {
        let settlement = Settlement::new(self.key(), &self.meter, receipt, cost).at(receipt.at());
        assert!(self.store.settle(settlement).await.unwrap().applied());
    }

    /// The length of each entry, oldest first.
    fn lengths(&self) -> Vec<usize> {
        let (entries, _) = held(&self.server, &self.store, self.key());
        entries.iter().map(Vec::len).collect()
    }
}

/// The fast path works on short entries alone: of 26 bytes, or of 33 with a cost. Long ones have 23, 30 with a cost and 35 with an id.
#[tokio::test]
async fn an_entry_is_short_if_that_form_can_hold_it() {
    let server = Server::start().unwrap();
    let store = connect(&server.url()).await;
    let meter = limit(MAX_COST, WINDOW).into();
    let log = Log {
        server,
        store,
        meter,
    };
    log.record(1, 0).await;
    log.record(7, 0).await;
    assert_eq!(log.lengths(), [26, 33]);
    // Expired entries go with the next append.
    log.record(1, WINDOW).await;
    assert_eq!(log.lengths(), [26]);

    // An entry with a caller's id, and all entries while the log holds it. The append that drops the id finds it there.
    let id = Op::record("k", &log.meter).with_id(1_u128);
    assert!(log.run(id, WINDOW).await.is_allowed());
    log.record(1, WINDOW + 1).await;
    assert_eq!(log.lengths(), [26, 35, 23]);
    log.record(1, 2 * WINDOW).await;
    log.record(1, 2 * WINDOW + 1).await;
    assert_eq!(log.lengths(), [23, 26]);

    // Denied attempts replace the oldest, and so does what follows at the same time.
    log.store.reset(log.key()).await.unwrap();
    let attempts = Policy::from(limit(5, 100)).with_counting(Counting::Attempts);
    for n in 0..300 {
        let decision = log.run(Op::acquire("k", &attempts), n).await;
        assert_eq!(decision.is_allowed(), n < 5);
        assert_eq!(log.lengths(), vec![26; (n as usize + 1).min(5)]);
    }
    log.record(1, 299).await;
    log.record(1, 300).await;
    assert_eq!(log.lengths(), [26; 7]);

    // Beyond a running total, until the log is empty; and beyond an age of the first entry.
    log.store.reset(log.key()).await.unwrap();
    for (cost, time) in [(TOTAL - 2, 0), (1, 0), (1, 0), (1, 1)] {
        log.record(cost, time).await;
    }
    assert_eq!(log.lengths(), [33, 26, 23, 23]);
    log.record(1, WINDOW + 1).await;
    log.record(1, WINDOW + 1).await;
    assert_eq!(log.lengths(), [26, 26]);
    log.store.reset(log.key()).await.unwrap();
    let ages = Policy::from(limit(100, 2 * AGE));
    for at in [0, AGE - 1, AGE] {
        assert!(log.run(Op::acquire("k", &ages), at).await.is_allowed());
    }
    assert_eq!(log.lengths(), [26, 26, 23]);

    // A settlement rewrites an entry and those after it, or at least the one before it. At a later time, entries are short again.
    log.store.reset(log.key()).await.unwrap();
    let mut receipts = Vec::new();
    for time in 0..4 {
        receipts.push(log.record(1, time).await);
    }
    for (receipt, cost, lengths) in [
        (2, 5, &[26, 26, 30, 23][..]),
        (3, 0, &[26, 26, 30]),
        (2, 0, &[26, 23]),
        (0, 0, &[23]),
    ] {
        log.settle(receipts[receipt], cost).await;
        assert_eq!(log.lengths(), lengths);
    }
    log.record(1, 1).await;
    log.record(1, 2).await;
    assert_eq!(log.lengths(), [23, 23, 26]);
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
        let (step, cost) = (
            limit.window().as_micros() / cells / in_each,
            limit.max() / cells / in_each,
        );
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
