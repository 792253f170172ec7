//! A log as a value against the reference store, which merges in the words of the contract.

use std::time::Duration;

use limiter_core::store::{At, Log, Mode, Op, Settlement, decide};
use limiter_core::{
    Decision, Limit, MAX_COST, Policy, Settled, SyncStore, Timestamp, Window, policy,
};
use limiter_testkit::ReferenceStore;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros_saturating(micros)
}

/// A log and the reference store, which must agree on everything.
struct Pair {
    log: Log,
    reference: ReferenceStore,
    /// The receipts of both for the same entries.
    receipts: Vec<[limiter_core::Receipt; 2]>,
}

impl Pair {
    fn new() -> Self {
        Self {
            log: Log::new(),
            reference: ReferenceStore::new(),
            receipts: Vec::new(),
        }
    }

    fn apply(&mut self, op: Op<'_>) -> Decision {
        let op = op.checked().unwrap();
        let facts = self.log.apply(&op, Timestamp::EPOCH);
        facts.verify(&op).unwrap();
        let [ours, theirs] = [facts, self.reference.apply_now(&op)].map(|facts| decide(&op, facts));
        let seen = |decision: &Decision| {
            let receipt = decision
                .receipt()
                .map(|receipt| (receipt.at(), receipt.window()));
            (
                decision.is_allowed(),
                decision.at(),
                decision.retry_after(),
                decision.limits(),
                decision.appended(),
                receipt,
            )
        };
        assert_eq!(seen(&ours), seen(&theirs), "{op:?}");
        self.receipts
            .extend(ours.receipt().zip(theirs.receipt()).map(<[_; 2]>::from));
        self.compare(op);
        ours
    }

    fn settle(&mut self, receipt: usize, policy: &Policy, cost: u64, at: Timestamp) {
        let Some(receipts) = self.receipts.get(receipt % self.receipts.len().max(1)) else {
            return;
        };
        let op = Op::acquire("", policy);
        let [ours, theirs] =
            receipts.map(|receipt| Settlement::new(op.log, policy, receipt, cost).at(at));
        let both = [
            Settled::new(&ours, self.log.settle(&ours, Timestamp::EPOCH)),
            Settled::new(&theirs, self.reference.settle_now(&theirs)),
        ];
        assert_eq!(both[0], both[1], "{ours:?}");
        self.compare(op);
    }

    fn compare(&mut self, op: Op<'_>) {
        let entries = self.reference.entries(op.log);
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| (entry.at.as_micros(), entry.cost))
            .collect();
        assert_eq!(
            format!("{:?}", self.log),
            format!("Log {{ entries: {entries:?}, .. }}"),
            "{op:?}"
        );
    }
}

#[test]
fn an_endless_stream_leaves_a_small_log() {
    for (policy, seen) in [
        (policy!("1000000/1h~1m"), 0),
        (policy!("1000000/1h~1m, 100000/10m"), 600_000 / 37 + 1),
    ] {
        let mut log = Log::new();
        for i in 0..200_000 {
            let op = Op::acquire("", &policy).at(time(i * 37_000));
            log.apply(&op, Timestamp::EPOCH);
            assert!(log.len() <= 62 + seen, "{policy}: {} entries", log.len());
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Apply {
        mode: Mode,
        policy: usize,
        limiter: Option<usize>,
        cost: u64,
        id: Option<u128>,
    },
    Settle {
        receipt: usize,
        policy: usize,
        cost: u64,
    },
    Reload,
}

fn limits() -> impl Strategy<Value = Policy> {
    let minutes = prop_oneof![1..=150_u64, Just(10), Just(60)];
    let resolutions = prop_oneof![Just(MINUTE), Just(10 * MINUTE), Just(60 * MINUTE)];
    let limit = (1..=9_u64, minutes, any::<bool>(), any::<bool>());
    (proptest::collection::vec(limit, 1..=3), resolutions).prop_map(|(limits, resolution)| {
        let limit = |(max, minutes, is_coarse, is_meter)| {
            let window = Window::from_micros(minutes * MINUTE).unwrap();
            let limit =
                Limit::with_window(if is_meter { MAX_COST } else { 3 * max }, window).unwrap();
            let coarse = limit.with_resolution(Duration::from_micros(resolution));
            coarse.ok().filter(|_| is_coarse).unwrap_or(limit)
        };
        Policy::new(limits.into_iter().map(limit)).unwrap()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let mode =
        prop_oneof![4 => Just(Mode::Acquire), 2 => Just(Mode::Record), 1 => Just(Mode::Peek)];
    let cost = prop_oneof![8 => 1..=3_u64, 1 => Just(MAX_COST)];
    let apply = (
        mode,
        0..4_usize,
        proptest::option::of(0..3_usize),
        cost,
        0..12_u128,
    )
        .prop_map(|(mode, policy, limiter, cost, id)| {
            let (policy, id) = (policy % 3, (id < 3).then_some(id));
            Step::Apply {
                mode,
                policy,
                limiter,
                cost: if mode == Mode::Record {
                    cost
                } else {
                    cost.min(3)
                },
                id,
            }
        });
    let settle = (any::<usize>(), 0..3_usize, 0..3_u64);
    let settle = settle.prop_map(|(receipt, policy, cost)| Step::Settle {
        receipt,
        policy,
        cost,
    });
    prop_oneof![12 => apply, 2 => settle, 1 => Just(Step::Reload)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_equals_the_oracle(
        policies in [limits(), limits(), limits()],
        start in prop_oneof![Just(0), Just(1_700_000_000 * SECOND), Just(Timestamp::MAX.as_micros() - 200 * MINUTE)],
        steps in proptest::collection::vec((step(), prop_oneof![Just(0), Just(600), 0..120_u64, 120..3_600_u64]), 1..80),
    ) {
        let (mut pair, mut now) = (Pair::new(), start);
        for (step, seconds) in steps {
            now = (now + seconds * SECOND).min(Timestamp::MAX.as_micros());
            // Sometimes the clock steps back.
            let at = time(if seconds % 7 == 6 { now.saturating_sub(5 * MINUTE) } else { now });
            match step {
                Step::Apply { mode, policy, limiter, cost, id } => {
                    let mut op = Op::new(mode, "", &policies[policy]).with_cost(cost);
                    (op.at, op.limiter_policy) = (At::Given(at), limiter.map(|i| &policies[i]));
                    op.id = id.map(Into::into).filter(|_| op.receipt_window().is_some());
                    let _ = pair.apply(op);
                }
                Step::Settle { receipt, policy, cost } => pair.settle(receipt, &policies[policy], cost, at),
                Step::Reload => pair.log = Log::from_bytes(&pair.log.to_bytes()).unwrap(),
            }
        }
    }
}
