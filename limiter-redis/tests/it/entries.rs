//! An entry has a short form or a long one, depending on what it has to hold.

use limiter_core::store::{LogKey, Op, Settlement};
use limiter_core::{Counting, Decision, MAX_COST, Name, Policy, Receipt, WindowStore, policy};
use limiter_redis::RedisStore;
use limiter_testkit::{Answer, ReferenceStore};
use testbed::server::Server;

use crate::support::{at, connect, limit, members, random_below, run};

const WINDOW: u64 = 1_000;
/// From this running total on an entry is long, and from this age of the first entry.
const TOTAL: u64 = 1 << 39;
const AGE: u64 = 1 << 48;

/// The log of the key `k`, for operations without a limiter.
struct Log {
    server: Server,
    store: RedisStore,
    meter: Policy,
}

impl Log {
    async fn new() -> Self {
        let server = Server::start().unwrap();
        Self {
            store: connect(&server.url()).await,
            server,
            meter: limit(MAX_COST, WINDOW).into(),
        }
    }

    fn key(&self) -> LogKey<'static> {
        LogKey::new(Name::default(), "k")
    }

    async fn run(&self, op: Op<'_>, time: u64) -> Decision {
        run(&self.store, op.at(at(time))).await.unwrap()
    }

    async fn record(&self, cost: u64, time: u64) -> Receipt {
        let decision = self
            .run(Op::record("k", &self.meter).with_cost(cost), time)
            .await;
        decision.receipt().unwrap()
    }

    /// Settles at the time of the newest entry. Returns `true` if it took effect.
    async fn settle(&self, receipt: Receipt, cost: u64) -> bool {
        let settlement = Settlement::new(self.key(), &self.meter, receipt, cost).at(receipt.at());
        self.store.settle(settlement).await.unwrap().applied
    }

    /// The form and the length of each entry, oldest first: `true` is short.
    fn forms(&self) -> Vec<(bool, usize)> {
        let members = members(&self.server, &self.store, self.key());
        members
            .iter()
            .filter(|bytes| bytes[0] != b'i')
            .map(|bytes| (bytes[7] < 128, bytes.len()))
            .collect()
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
    assert!(log.run(id, WINDOW).await.is_allowed());
    log.record(1, WINDOW + 1).await;
    assert_eq!(log.forms(), [(true, 26), (false, 35), (false, 23)]);
    // The append that drops the id finds it there.
    log.record(1, 2 * WINDOW).await;
    log.record(1, 2 * WINDOW + 1).await;
    assert_eq!(log.forms(), [(false, 23), (true, 26)]);

    // A denied attempt, and what follows at the same time.
    let attempts = Policy::from(limit(3, WINDOW)).with_counting(Counting::Attempts);
    for allowed in [true, false] {
        assert_eq!(
            log.run(Op::acquire("k", &attempts), 2 * WINDOW + 2)
                .await
                .is_allowed(),
            allowed
        );
    }
    log.record(1, 2 * WINDOW + 2).await;
    log.record(1, 2 * WINDOW + 3).await;
    assert_eq!(
        log.forms()[1..],
        [(true, 26), (true, 26), (true, 26), (true, 26)]
    );
}

#[tokio::test]
async fn an_entry_is_long_beyond_a_running_total_or_beside_one_of_a_great_age() {
    let log = Log::new().await;
    log.record(TOTAL - 2, 0).await;
    log.record(1, 0).await;
    log.record(1, 0).await;
    log.record(1, 1).await;
    assert_eq!(
        log.forms(),
        [(true, 33), (true, 26), (false, 23), (false, 23)]
    );
    // Until the log is empty.
    log.record(1, WINDOW + 1).await;
    log.record(1, WINDOW + 1).await;
    assert_eq!(log.forms(), [(true, 26), (true, 26)]);

    log.store.reset(log.key()).await.unwrap();
    let policy = Policy::from(limit(100, 2 * AGE));
    for at in [0, AGE - 1, AGE] {
        assert!(log.run(Op::acquire("k", &policy), at).await.is_allowed());
    }
    assert_eq!(log.forms(), [(true, 26), (true, 26), (false, 23)]);
    let decision = log.run(Op::peek("k", &policy), AGE).await;
    assert_eq!(
        (decision.used(), decision.refill_after().as_micros()),
        (3, u128::from(AGE))
    );
}

#[tokio::test]
async fn after_a_settlement_the_newest_entry_is_long() {
    let log = Log::new().await;
    let receipts = [
        log.record(1, 0).await,
        log.record(1, 1).await,
        log.record(1, 2).await,
        log.record(1, 3).await,
    ];
    assert!(log.settle(receipts[2], 5).await);
    assert_eq!(
        log.forms(),
        [(true, 26), (true, 26), (false, 30), (false, 23)]
    );
    assert!(log.settle(receipts[3], 0).await);
    assert!(log.settle(receipts[2], 0).await);
    assert_eq!(log.forms(), [(true, 26), (false, 23)]);
    assert!(log.settle(receipts[0], 0).await);
    assert_eq!(log.forms(), [(false, 23)]);
    let policy = Policy::from(limit(10, 10 * WINDOW));
    assert_eq!(log.run(Op::peek("k", &policy), 4).await.used(), 1);
    // At the same time a long one, later a short one.
    log.record(1, 1).await;
    log.record(1, 2).await;
    assert_eq!(log.forms(), [(false, 23), (false, 23), (true, 26)]);
    assert_eq!(log.run(Op::acquire("k", &policy), 3).await.used(), 4);
}

#[tokio::test]
async fn a_log_of_denied_attempts_holds_the_maximum_in_short_entries() {
    let log = Log::new().await;
    let policy = Policy::from(limit(5, 100)).with_counting(Counting::Attempts);
    for n in 0..300 {
        let decision = log.run(Op::acquire("k", &policy), n).await;
        assert_eq!(decision.is_allowed(), n < 5);
        // Another form would keep the next operation from the fast path.
        assert_eq!(log.forms(), vec![(true, 26); (n as usize + 1).min(5)]);
    }
}

/// In a log that is never empty, the running total goes on from 0 once it reaches 2^53.
#[tokio::test]
async fn a_meter_counts_on_beyond_the_largest_total() {
    // The four entries below end so many units before that.
    for (place, left) in [(0, 5), (1, 1 << 48)] {
        let (log, reference) = (Log::new().await, ReferenceStore::new());
        let policies = [
            log.meter.clone(),
            policy!("4503599627370496/1ms, 9/300us"),
            policy!("4503599627370496/200us"),
        ];
        let mut pick = random_below(place);
        let (mut time, mut receipts) = (0, Vec::new());
        for n in 0..400_u128 {
            if n == 4 {
                for member in members(&log.server, &log.store, log.key()) {
                    let mut moved = member.clone();
                    assert!(member[7] >= 128, "an entry is short");
                    let mut total = [0; 8];
                    total[1..].copy_from_slice(&moved[9..16]);
                    let total = u64::from_be_bytes(total) + (1 << 53) - (4 << 47) - left;
                    moved[9..16].copy_from_slice(&total.to_be_bytes()[1..]);
                    let stored = log.store.redis_key(log.key());
                    log.server
                        .command::<()>(&[b"ZADD".as_slice(), &stored, b"0", &moved])
                        .unwrap();
                    log.server
                        .command::<()>(&[b"ZREM".as_slice(), &stored, &member])
                        .unwrap();
                }
            }
            // At first, so much that the entries are long.
            let cost = if n < 4 || pick(4) == 0 {
                1 << if n < 4 { 47 } else { 51 }
            } else {
                1 + pick(3)
            };
            time += if n < 4 { 1 } else { pick(4) };
            let mut op = Op::record("k", &policies[if n < 4 { 0 } else { pick(3) as usize }])
                .with_cost(cost);
            if pick(4) == 0 && n > 4 {
                op = op.with_id(n);
            }
            let op = op.at(at(time)).with_limiter_policy(&log.meter);
            let (got, expected) = (
                run(&log.store, op).await.unwrap(),
                run(&reference, op).await.unwrap(),
            );
            assert_eq!(
                Answer::from(&got),
                Answer::from(&expected),
                "{place}, {n}: {op:?}"
            );
            receipts.extend(got.receipt().zip(expected.receipt()));
            if pick(3) == 0 && n > 4 {
                let back = receipts.len() - 1 - pick(8.min(receipts.len() as u64)) as usize;
                let cost = pick(2);
                let settle =
                    |receipt| Settlement::new(log.key(), &policies[1], receipt, cost).at(at(time));
                let got = log.store.settle(settle(receipts[back].0)).await.unwrap();
                let expected = reference.settle(settle(receipts[back].1)).await.unwrap();
                let used = |facts: &limiter_core::store::SettlementFacts| {
                    (
                        facts.applied,
                        facts.log.newest,
                        facts.log.usage.map(|usage| usage.used),
                    )
                };
                assert_eq!(used(&got), used(&expected), "{place}, {n}");
            }
            let held = reference.entries(log.key());
            let info = log.store.inspect(log.key()).await.unwrap().unwrap();
            let cost = held.iter().map(|entry| entry.cost).sum::<u64>();
            assert_eq!(
                (info.entries, info.cost),
                (held.len() as u64, cost),
                "{place}, {n}"
            );
        }
    }
}
