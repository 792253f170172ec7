//! An entry has a short form or a long one, depending on what it has to hold. No decision depends on the form.

use limiter_core::store::{LogKey, Mode, Op, Settlement};
use limiter_core::{Counting, Decision, Limit, MAX_COST, Name, Policy, Receipt, Timestamp, Window, WindowStore};
use limiter_redis::RedisStore;
use limiter_testkit::conformance::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use limiter_testkit::server::{Reply, Server};
use proptest::collection::vec;
use proptest::prelude::*;

use common::{agree_with_the_oracle, connect, run, with_receipts};

mod common;

const START: u64 = 1_700_000_000_000_000;
const WINDOW: u64 = 1_000;
/// From this running total on an entry is long, and from this age of the first entry.
const TOTAL: u64 = 1 << 39;
const AGE: u64 = 1 << 48;

fn limit(max: u64, window: u64) -> Policy {
    Limit::with_window(max, Window::from_micros(window).unwrap()).unwrap().into()
}

/// The log of the key `k`, for operations without a limiter.
struct Log {
    server: Server,
    store: RedisStore,
    meter: Policy,
}

impl Log {
    async fn new() -> Self {
        let server = Server::start().unwrap();
        Self { store: connect(&server.url()).await, server, meter: limit(MAX_COST, WINDOW) }
    }

    fn key(&self) -> LogKey<'static> {
        LogKey::new(Name::default(), "k")
    }

    async fn run(&self, op: Op<'_>, at: u64) -> Decision {
        run(&self.store, op.at(Timestamp::from_micros(START + at).unwrap())).await.unwrap()
    }

    async fn record(&self, cost: u64, at: u64) -> Receipt {
        let decision = self.run(Op::record("k", &self.meter).with_cost(cost), at).await;
        decision.receipt().unwrap()
    }

    /// Settles at the time of the newest entry. Returns whether it took effect.
    async fn settle(&self, receipt: Receipt, cost: u64) -> bool {
        let settlement = Settlement::new(self.key(), &self.meter, receipt, cost).at(receipt.at());
        self.store.settle(settlement).await.unwrap().applied
    }

    /// The form and the length of each entry, oldest first: `true` is short.
    fn forms(&self) -> Vec<(bool, usize)> {
        let stored = self.store.redis_key(self.key());
        let members = self.server.command(&[b"ZRANGE".as_slice(), &stored, b"0", b"-1"]).unwrap();
        let Reply::List(members) = members else { panic!("{members:?}") };
        let form = |member| match member {
            Reply::Bytes(Some(bytes)) if bytes[0] != b'i' => Some((bytes[7] < 128, bytes.len())),
            _ => None,
        };
        members.into_iter().filter_map(form).collect()
    }
}

#[tokio::test]
async fn an_entry_is_short_if_that_form_can_hold_it() {
    let log = Log::new().await;
    log.record(1, 0).await;
    log.record(7, 0).await;
    assert_eq!(log.forms(), [(true, 26), (true, 33)]);

    // Expired entries go with the next append.
    log.record(1, WINDOW).await;
    assert_eq!(log.forms(), [(true, 26)]);

    // An entry with a caller's id, and all entries while the log holds it.
    let id = Op::record("k", &log.meter).with_id(1_u128);
    assert!(log.run(id, WINDOW).await.allowed());
    log.record(1, WINDOW + 1).await;
    assert_eq!(log.forms(), [(true, 26), (false, 33), (false, 23)]);
    // The one that drops the id finds it there.
    log.record(1, 2 * WINDOW).await;
    log.record(1, 2 * WINDOW + 1).await;
    assert_eq!(log.forms(), [(false, 23), (true, 26)]);

    // A denied attempt, and what follows at the same time.
    let attempts = limit(3, WINDOW).with_counting(Counting::Attempts);
    for allowed in [true, false] {
        assert_eq!(log.run(Op::acquire("k", &attempts), 2 * WINDOW + 2).await.allowed(), allowed);
    }
    log.record(1, 2 * WINDOW + 2).await;
    log.record(1, 2 * WINDOW + 3).await;
    assert_eq!(log.forms()[1..], [(true, 26), (true, 26), (true, 26), (true, 26)]);
}

#[tokio::test]
async fn an_entry_is_long_from_a_running_total_on_until_the_log_is_empty() {
    let log = Log::new().await;
    log.record(TOTAL - 2, 0).await;
    log.record(1, 0).await;
    log.record(1, 0).await;
    log.record(1, 1).await;
    assert_eq!(log.forms(), [(true, 33), (true, 26), (false, 23), (false, 23)]);
    log.record(1, WINDOW + 1).await;
    assert_eq!(log.forms(), [(true, 26)]);
    log.record(1, WINDOW + 1).await;
    assert_eq!(log.forms(), [(true, 26), (true, 26)]);
}

#[tokio::test]
async fn an_entry_is_long_beside_one_of_a_great_age() {
    let log = Log::new().await;
    let policy = limit(100, 2 * AGE);
    for at in [0, AGE - 1, AGE] {
        assert!(log.run(Op::acquire("k", &policy), at).await.allowed());
    }
    assert_eq!(log.forms(), [(true, 26), (true, 26), (false, 23)]);
    let decision = log.run(Op::peek("k", &policy), AGE).await;
    assert_eq!((decision.used(), decision.refill_after().as_micros()), (3, u128::from(AGE)));
}

#[tokio::test]
async fn after_a_settlement_the_newest_entry_is_long() {
    let log = Log::new().await;
    let mut receipts = Vec::new();
    for at in 0..4 {
        receipts.push(log.record(1, at).await);
    }
    assert!(log.settle(receipts[2], 5).await);
    assert_eq!(log.forms(), [(true, 26), (true, 26), (false, 30), (false, 23)]);
    assert!(log.settle(receipts[3], 0).await);
    assert!(log.settle(receipts[2], 0).await);
    assert_eq!(log.forms(), [(true, 26), (false, 23)]);
    assert!(log.settle(receipts[0], 0).await);
    assert_eq!(log.forms(), [(false, 23)]);
    assert_eq!(log.run(Op::peek("k", &limit(10, 10 * WINDOW)), 4).await.used(), 1);
    // At the same time a long one, later a short one.
    log.record(1, 1).await;
    log.record(1, 2).await;
    assert_eq!(log.forms(), [(false, 23), (false, 23), (true, 26)]);
    let policy = limit(10, 10 * WINDOW);
    assert_eq!(log.run(Op::acquire("k", &policy), 3).await.used(), 4);
}

#[tokio::test]
async fn what_a_short_window_dropped_a_longer_one_does_not_count() {
    let log = Log::new().await;
    let (short, long) = (limit(10, 10), limit(10, 10 * WINDOW));
    let mut receipts = Vec::new();
    for at in [0, 1, 5, 10, 11, 12, 30] {
        receipts.push(log.run(Op::acquire("k", &short), at).await.receipt().unwrap());
        let info = log.store.inspect(log.key()).await.unwrap().unwrap();
        let used = log.run(Op::peek("k", &long), at).await.used();
        assert_eq!((info.entries, info.cost), (used, used), "at {at}");
        assert_eq!(used, log.run(Op::peek("k", &short), at).await.used(), "at {at}");
    }
    for (i, receipt) in receipts.into_iter().enumerate() {
        assert_eq!(log.settle(receipt, 0).await, i == 6, "{i}");
    }
    assert!(log.store.inspect(log.key()).await.unwrap().is_none());
}

/// Costs, times and policies beyond what a short entry can hold.
fn extremes() -> impl Strategy<Value = Case> {
    const COSTS: [u64; 12] = [1, 1, 1, 1, 2, 5, 65_533, 65_534, 65_535, TOTAL - 3, TOTAL, MAX_COST];
    const TIMES: [u64; 12] = [0, 0, 0, 1, 1, 9, 10, 11, WINDOW, AGE - 1, AGE, AGE + 1];
    const POLICIES: [(u64, u64); 8] = [
        (3, 10),
        (65_535, 10),
        (65_536, WINDOW),
        (65_540, 2 * AGE),
        (TOTAL, 10),
        (TOTAL + 4, 2 * AGE),
        (MAX_COST, 10),
        (9, WINDOW),
    ];
    let policy = (vec(0..POLICIES.len(), 1..=2), any::<bool>()).prop_map(|(limits, attempts)| {
        let window = |micros| Window::from_micros(micros).unwrap();
        let limits = limits.into_iter().map(|i| Limit::with_window(POLICIES[i].0, window(POLICIES[i].1)).unwrap());
        let policy = Policy::new(limits).unwrap();
        if attempts { policy.with_counting(Counting::Attempts) } else { policy }
    });
    // Mostly through a limiter whose default policy is another one than the operation's.
    let limiters = vec![
        CaseLimiter::NONE,
        CaseLimiter { name: 0, policy: Some(0) },
        CaseLimiter { name: 0, policy: Some(1) },
        CaseLimiter { name: 0, policy: Some(2) },
    ];
    let step =
        (0..16_u8, 0..TIMES.len(), 0..COSTS.len(), any::<u8>(), 0..4_u8).prop_map(|(kind, time, cost, n, policy)| {
            let cost = COSTS[cost];
            let operation = match kind {
                0..=2 => {
                    let cost = if kind == 0 { cost } else { 0 };
                    Operation::Settle { step: n.into(), on: None, cost, policy }
                }
                _ => {
                    let mode =
                        [Mode::Acquire, Mode::Record, Mode::Peek][usize::from(kind.saturating_sub(10) / 2).min(2)];
                    let id = (n > 250).then_some(CaseId::Fresh(n % 2));
                    Operation::Run { mode, on: Place { limiter: n / 2, key: 0 }, policy, cost, id }
                }
            };
            Step { after: i64::try_from(TIMES[time]).unwrap(), operation }
        });
    (vec(policy, 1..=3), vec(step, 1..=30)).prop_map(move |(policies, steps)| Case {
        policies,
        limiters: limiters.clone(),
        start: START,
        steps: with_receipts(steps),
    })
}

#[test]
fn decisions_are_the_same_at_the_ends_of_the_forms() {
    agree_with_the_oracle(file!(), 2_000, &extremes(), |case| vec![case]);
}
