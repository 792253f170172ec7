//! The guarantee, judged from outside: no window admits more than its maximum, and no unit is held longer than its window and the
//! resolution.

use std::fmt::Write;

use limiter_core::store::{LogKey, Mode, Op, Settlement};
use limiter_core::{
    Decision, Error, Limit, Policy, Receipt, SharedStore, Timestamp, WindowStore as _,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::conformance::sentence::Sentence;
use crate::conformance::sentence::Sentence::{E1, L3, M1};
use crate::conformance::sequence::caller::salt;
use crate::conformance::sequence::caller::{Route, by_facts, decided};
use crate::conformance::sequence::case::{Case, CaseId, CaseLimiter, Operation, Place, Step};
use crate::conformance::sequence::mismatch::Mismatch;
use crate::conformance::strategy::{START, coarse, limit, policy};
use crate::conformance::suite::run::{Run, log, reset_all};

/// The units that a call has appended.
#[derive(Debug)]
struct Units {
    at: u64,
    cost: u64,
    receipt: Option<Receipt>,
    /// Whether they fitted both policies. No window may admit more of them than its maximum.
    fitted: bool,
    /// Whether others fill the window without them: they did not fit, and units were refunded since.
    may_be_missing: bool,
}

fn sum<'a>(units: impl IntoIterator<Item = &'a Units>) -> u64 {
    units
        .into_iter()
        .fold(0, |sum, units| sum.saturating_add(units.cost))
}

/// Returns sequences on one key that keep limits nearly full, under up to two policies, at times that suit the windows.
pub(super) fn traffic() -> impl Strategy<Value = Case, Tree: Send> {
    const WINDOWS: [u64; 6] = [20, 35, 60, 60, 130, 200];
    const FRACTIONS: [u64; 5] = [0, 1, 3, 6, 20];
    const SCALES: [u64; 3] = [1, 10, 60_000_000];
    const TIMES: [i64; 16] = [0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 7, 9, 19, 60, -4];
    let raw_limit = (2..=12_u64, 0..WINDOWS.len(), any::<bool>());
    let step = (
        0..20_u8,
        0..TIMES.len(),
        1..=3_u64,
        0..8_u8,
        0..60_i64,
        any::<Index>(),
    );
    let raw_policy = (vec(raw_limit, 1..=3), 0..FRACTIONS.len(), any::<bool>());
    let policies = (vec(raw_policy, 1..=2), 0..4_u8);
    (policies, 0..SCALES.len(), vec(step, 20..=60)).prop_map(
        |((mut policies, pair), scale, raw)| {
            let scale = SCALES[scale];
            if let ([(default, fraction, _), (own, none, _)], 0) = (&mut policies[..], pair) {
                // Entries with a faster policy displace those that the first counts. Exact limits give each a receipt.
                default.truncate(1);
                *own = vec![(own[0].0.min(default[0].0), 0, false)];
                (*fraction, *none) = (0, 0);
            }
            let policies = policies.into_iter().map(|(raw, fraction, attempts)| {
                let limits = raw.iter().map(|(max, window, is_coarse)| {
                    (limit(*max, WINDOWS[*window] * scale), *is_coarse)
                });
                policy(&coarse(limits, FRACTIONS[fraction]), attempts)
            });
            let step = |(number, (kind, time, cost, id, jitter, other)): (
                usize,
                (_, usize, u64, u8, i64, Index),
            )| {
                let run = |mode, policy| Operation::Run {
                    mode,
                    on: Place::default(),
                    policy,
                    cost,
                    id: (id == 7).then_some(CaseId::Fresh(number as u8)),
                };
                let operation = match kind {
                    0 | 1 => run(Mode::Record, 0),
                    2..=6 => run(Mode::Acquire, 1),
                    7..=10 if number > 0 => {
                        let step = number - 1 - other.index(number.min(12));
                        Operation::Settle {
                            step,
                            on: None,
                            cost: (cost - 1) / 2,
                            policy: 0,
                        }
                    }
                    _ => run(Mode::Acquire, 0),
                };
                let scale = scale as i64;
                Step {
                    after: TIMES[time] * scale + jitter * (scale / 60),
                    operation,
                }
            };
            let steps = raw.into_iter().enumerate().map(step).collect();
            Case {
                policies: policies.collect(),
                limiters: vec![CaseLimiter::NONE],
                start: START,
                steps,
            }
        },
    )
}

/// Returns the bound on a unit's delay: the resolution, unless an exact limit counts the unit for as long.
fn late(policy: &Policy, limit: &Limit) -> u64 {
    if Some(limit.window()) <= policy.longest_exact_window() {
        return 0;
    }
    limit.resolution().unwrap_or_default().as_micros() as u64
}

/// Returns the error in a decision. `log` holds the units after it.
fn wrong(log: &[Units], op: &Op<'_>, decision: &Decision) -> Option<(Sentence, String)> {
    let now = decision.at().as_micros();
    if log.iter().any(|units| units.at > now) {
        // The newest entry was removed, and with it time stepped back. The store may have dropped and merged at the later time.
        return None;
    }
    let younger = |age: u64| log.iter().filter(move |units| now - units.at < age);
    let mut may_deny = decision.allowed();
    for status in decision.limits().iter() {
        let (limit, used) = (status.limit(), status.used());
        let least = sum(younger(limit.window().as_micros()).filter(|units| !units.may_be_missing));
        let most = sum(younger(
            limit.window().as_micros() + late(op.policy, &limit),
        ));
        if used < least.min(limit.max())
            || decision.allowed() && op.mode == Mode::Acquire && least > limit.max()
        {
            return Some((
                L3,
                format!("used {used} of {limit}, but the window admitted {least}"),
            ));
        }
        if used > most {
            return Some((
                M1,
                format!("used {used} of {limit}, but at most {most} are still held"),
            ));
        }
        may_deny |= most.saturating_add(op.cost) > limit.max();
    }
    (!may_deny).then(|| {
        (
            M1,
            format!("{:?} of {} was denied, but fits", op.mode, op.cost),
        )
    })
}

/// A sequence on one new key. All operations go through a limiter whose default policy is the first.
struct Judged<'a> {
    store: &'a SharedStore,
    policies: &'a [Policy],
    log_key: LogKey<'a>,
    salt: u128,
    units: Vec<Units>,
    /// By step.
    receipts: Vec<Option<Receipt>>,
}

impl Judged<'_> {
    /// Makes a step's call, then a peek with the default policy. Returns what is wrong with them.
    async fn step(
        &mut self,
        operation: Operation,
        at: Timestamp,
    ) -> Result<Option<(Sentence, String)>, Error> {
        let (default, units) = (&self.policies[0], &mut self.units);
        let op = Op::peek(self.log_key.key, default)
            .with_name(self.log_key.name)
            .at(at);
        let (mut found, mut receipt) = (None, None);
        match operation {
            Operation::Run {
                mode,
                policy,
                cost,
                id,
                ..
            } => {
                let mut op = op.with_cost(cost).with_limiter_policy(default);
                (op.mode, op.policy) = (
                    mode,
                    &self.policies[usize::from(policy) % self.policies.len()],
                );
                op.id = id.and_then(|id| id.entry_id(self.salt, |_| None));
                if op.checked().is_ok() {
                    let mut peek = op;
                    (peek.mode, peek.policy) = (Mode::Peek, default);
                    let fits_default =
                        peek.checked().is_ok() && by_facts(self.store, peek).await?.0.allowed();
                    let decision = decided(self.store, op, Route::AtOnce).await?.0;
                    receipt = decision.receipt();
                    // No id is repeated.
                    if decision.appended() {
                        let (at, fitted) = (
                            decision.at().as_micros(),
                            fits_default && decision.allowed(),
                        );
                        units.push(Units {
                            at,
                            cost,
                            receipt,
                            fitted,
                            may_be_missing: false,
                        });
                    }
                    found = wrong(units, &op, &decision).filter(|_| op.policy == default);
                }
            }
            Operation::Settle { step, cost, .. } => {
                // A higher cost may displace entries that no lower one brings back.
                let settled = units.iter().position(|units| {
                    units.receipt.is_some() && units.receipt == self.receipts[step]
                });
                if let Some((i, receipt)) = settled
                    .zip(self.receipts[step])
                    .filter(|(i, _)| cost < units[*i].cost)
                {
                    let settlement = Settlement::new(self.log_key, default, receipt, cost).at(at);
                    if self.store.settle(settlement).await?.applied {
                        units[i].cost = cost;
                        units
                            .iter_mut()
                            .for_each(|units| units.may_be_missing |= !units.fitted);
                    }
                }
            }
            Operation::Reset { .. } => {}
        }
        self.receipts.push(receipt);
        let decision = by_facts(self.store, op).await?.0;
        Ok(found.or_else(|| wrong(&self.units, &op, &decision)))
    }
}

/// Judges each decision by the case's first policy.
pub(super) async fn judge(run: &mut Run<'_>, case: &Case) -> Result<(), Mismatch> {
    run.count(2 * case.steps.len() as u64);
    let (store, key) = (run.store(), run.new_key());
    let log_key = log(&key);
    let (salt, units, receipts) = (salt(), Vec::new(), Vec::new());
    let mut judged = Judged {
        store,
        policies: &case.policies,
        log_key,
        salt,
        units,
        receipts,
    };
    let (mut now, mut transcript, mut result) = (case.start, String::new(), Ok(()));
    for step in &case.steps {
        now = now.saturating_add_signed(step.after);
        _ = writeln!(transcript, "at {now}: {:?}", step.operation);
        let found = judged
            .step(step.operation, Timestamp::from_micros_saturating(now))
            .await;
        let found = found
            .unwrap_or_else(|error| Some((E1, format!("the store returned the error {error:?}"))));
        if let Some((citation, text)) = found {
            transcript += &format!("under {}: {text}", case.policies[0]);
            result = Err(Mismatch::new("a sequence", &[citation], transcript));
            break;
        }
    }
    reset_all(store, &[log_key]).await;
    result
}
