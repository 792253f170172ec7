//! Flaws of stores that apply several operations as one.

use std::time::Duration;

use limiter_core::Timestamp;
use limiter_core::store::{Facts, JointFacts, JointOp, Log, Op, Outcome};

use super::Flawed;
use super::store::Kept;

impl Flawed {
    /// Applies operations as one, after a change to each.
    pub(super) fn together(&self, ops: &[JointOp<'_>], change: fn(&mut JointOp<'_>)) -> Vec<Facts> {
        let mut ops = ops.to_vec();
        ops.iter_mut().for_each(change);
        let logs = &mut *self.shared.logs.lock().unwrap();
        let ids: Vec<_> = ops.iter().map(|joint| self.id(joint.op.log)).collect();
        let kept: Vec<Kept> = ids
            .iter()
            .map(|id| logs.remove(id).unwrap_or_default())
            .collect();
        let mut own: Vec<Log> = kept.iter().map(|kept| kept.log.clone()).collect();
        let facts = Log::apply_all(&mut own, &ops, self.clock_now());
        for ((id, kept), log) in ids.into_iter().zip(kept).zip(own) {
            let right = log.expires_at().map_or(0, Timestamp::as_micros);
            let until = if self.is("KeepsTheExpiryOfJointAppends") {
                kept.until
            } else {
                right
            };
            logs.insert(id, Kept { log, until, ..kept });
        }
        facts
    }

    fn alone(&self, op: Op<'_>) -> Facts {
        self.with(&self.id(op.log), |kept| {
            kept.log.apply(&op, self.clock_now())
        })
    }

    fn denies(&self, ops: &[JointOp<'_>]) -> bool {
        ops.iter()
            .any(|joint| joint.denies(self.alone(joint.op.to_peek()).admitted))
    }
}

fn all(facts: impl IntoIterator<Item = Facts>) -> Option<JointFacts> {
    Some(facts.into_iter().map(Ok).collect())
}

pub(super) fn unchanged(flawed: &Flawed, ops: &[JointOp<'_>]) -> Option<JointFacts> {
    changed(flawed, ops, |_| ())
}

pub(super) fn changed(
    flawed: &Flawed,
    ops: &[JointOp<'_>],
    change: fn(&mut JointOp<'_>),
) -> Option<JointFacts> {
    all(flawed.together(ops, change))
}

pub(super) fn first_alone(flawed: &Flawed, ops: &[JointOp<'_>]) -> Option<JointFacts> {
    flawed.alone(ops[0].op);
    None
}

pub(super) fn one_by_one(flawed: &Flawed, ops: &[JointOp<'_>]) -> Option<JointFacts> {
    all(ops.iter().map(|joint| {
        // On a busy machine, the others run only if this thread sleeps.
        std::thread::sleep(Duration::from_micros(50));
        flawed.alone(joint.op)
    }))
}

pub(super) fn one_by_one_if_admitted(flawed: &Flawed, ops: &[JointOp<'_>]) -> Option<JointFacts> {
    if !flawed.denies(ops) && ops.iter().all(|joint| joint.op.id.is_none()) {
        one_by_one(flawed, ops)
    } else {
        unchanged(flawed, ops)
    }
}

pub(super) fn nothing_if_denied(flawed: &Flawed, ops: &[JointOp<'_>]) -> Option<JointFacts> {
    if flawed.denies(ops) {
        all(ops.iter().map(|joint| flawed.alone(joint.op.to_peek())))
    } else {
        unchanged(flawed, ops)
    }
}

pub(super) fn repeats_nothing_if_denied(
    flawed: &Flawed,
    ops: &[JointOp<'_>],
) -> Option<JointFacts> {
    let is_denied = flawed.denies(ops);
    let facts = flawed.together(ops, |_| ()).into_iter().zip(ops);
    all(facts.map(|(facts, joint)| match facts.outcome {
        Outcome::Repeated(_) if is_denied => flawed.alone(joint.op.to_peek()),
        _ => facts,
    }))
}
