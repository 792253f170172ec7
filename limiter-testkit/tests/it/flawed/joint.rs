//! Several operations as one, with one flaw.

use std::sync::atomic::Ordering;
use std::time::Duration;

use limiter_core::store::*;

use super::{Flawed, Id, Kept, clock, time};

/// Changes operations, so that a right store decides them as the flawed one does.
fn changed<'a>(flaw: &str, ops: &[JointOp<'a>], alone: &[Facts]) -> Vec<JointOp<'a>> {
    let numbers = 0..ops.len();
    let denies = |i: &usize| ops[*i].denies(alone[*i].admitted);
    let is_denied_record =
        |i: usize| !alone[i].admitted && ops[i].op.mode == Mode::Record && !ops[i].is_advisory;
    let first = numbers.clone().find(denies);
    let last = numbers.clone().rfind(denies);
    let latest = alone.iter().map(|facts| facts.log.now).max();
    let changed = numbers.clone().map(|i| {
        let mut joint = ops[i];
        let repeats = matches!(alone[i].outcome, Outcome::Repeated { .. });
        let is_held = match flaw {
            "RecordsDeny" => numbers.clone().any(|j| j != i && is_denied_record(j)),
            "HoldsRepetitions" => repeats && !denies(&i) && first.is_some(),
            "ForgetsTheFifth" => i > 3,
            _ => false,
        };
        if is_held {
            (joint.op, joint.is_advisory) = (joint.op.to_peek(), true);
        }
        match flaw {
            "AdvisoryOperationsDeny" => joint.is_advisory = false,
            "KeptChargesDoNotDeny" => joint.is_advisory |= joint.keeps_charge,
            "PeeksDoNotDeny" => joint.is_advisory |= joint.op.mode == Mode::Peek,
            "AdvisoryRepetitionsDeny" => joint.is_advisory &= !repeats,
            "RepetitionsDoNotDeny" => joint.is_advisory |= repeats,
            "DeniesByTheFirstOfAll" => joint.keeps_charge |= first == Some(i),
            "DeniesByTheLast" if last == Some(i) => joint.keeps_charge = true,
            "DeniesByTheLast" if denies(&i) && !repeats => joint.op = joint.op.to_peek(),
            "DeniesByAll" => joint.keeps_charge |= denies(&i),
            "HoldsNoRecords" => joint.keeps_charge |= joint.op.mode == Mode::Record,
            "HoldsWhatKeepsItsCharge" => joint.keeps_charge = false,
            "HoldsAdvisoryOperationsOnly" => joint.keeps_charge |= !joint.is_advisory,
            "HoldsTheFirstOnly" => joint.keeps_charge |= i > 0,
            "LosesIdsOfJointAppends" => joint.op.id = None,
            "OneClockForAllLogs" if joint.op.at != At::StoreClock => {
                joint.op.at = latest.map_or(joint.op.at, At::Given);
            }
            _ => {}
        }
        joint
    });
    changed.collect()
}

impl Flawed {
    /// Applies operations as one.
    pub(super) fn together(&self, ops: &[JointOp<'_>]) -> JointFacts {
        let id = |joint: &JointOp<'_>| {
            let name = match self.flaw {
                "JoinsUnderTheFirstName" => ops[0].op.log.name,
                _ => joint.op.log.name,
            };
            self.id(LogKey::new(name, joint.op.log.key))
        };
        let all = &mut *self.shared.logs.lock().unwrap();
        let now = clock();
        let ids: Vec<Id> = ops.iter().map(id).collect();
        let taken = ids
            .iter()
            .map(|id| all.remove(id).filter(|kept| kept.until > now));
        let logs: Vec<Kept> = taken.map(Option::unwrap_or_default).collect();
        let alone = |ops: &[JointOp<'_>]| -> Vec<Facts> {
            let each = logs.iter().zip(ops);
            each.map(|(kept, joint)| kept.log.clone().apply(&joint.op, time(now)))
                .collect()
        };
        let ops = changed(self.flaw, ops, &alone(ops));
        let held: Vec<bool> = JointOp::held(&ops, &alone(&ops)).collect();
        let each = ids.into_iter().zip(logs).zip(ops).zip(held);
        let applied = each.map(|(((id, mut kept), joint), is_held)| {
            let peek = joint.op.to_peek();
            let before = kept.log.clone().apply(&peek, time(now)).log;
            let op = if is_held { peek } else { joint.op };
            let mut facts = kept.log.apply(&op, time(now));
            match self.flaw {
                "FactsBeforeJointAppends" => facts.log = before,
                "JointWaitsFromNewest" => facts.log.clock = facts.log.now,
                _ => {}
            }
            if kept.until == 0 || !self.is("KeepsTheExpiryOfJointAppends") {
                kept.until = kept.log.expires_at().unwrap_or_default().as_micros();
            }
            if !kept.log.is_empty() {
                all.insert(id, kept);
            }
            Ok(facts)
        });
        applied.collect()
    }

    fn one_by_one(&self, ops: &[JointOp<'_>]) -> JointFacts {
        let facts = ops.iter().map(|joint| {
            // On a busy machine, the others run only if this thread sleeps.
            std::thread::sleep(Duration::from_micros(50));
            self.apply_step(joint.op)
        });
        facts.collect()
    }

    pub(super) async fn apply_joint(&self, ops: &[JointOp<'_>]) -> Option<JointFacts> {
        let is_plain = |joint: &JointOp<'_>| {
            let facts = self.apply_step(joint.op.to_peek());
            joint.op.id.is_none() && facts.is_ok_and(|facts| facts.admitted)
        };
        let is_used = |joint: &JointOp<'_>| !self.copy(&self.id(joint.op.log)).log.is_empty();
        let is_short = |until: u64| (1..60_000).contains(&until.saturating_sub(super::clock()));
        if self.is("Pauses")
            && ops
                .iter()
                .any(|joint| is_short(self.copy(&self.id(joint.op.log)).until))
        {
            std::thread::sleep(Duration::from_millis(60));
        }
        match self.flaw {
            "ChangesALogAndCannot" => {
                _ = self.apply_step(ops[0].op);
                None
            }
            "CannotIfAdvisory" if ops.iter().any(|joint| joint.is_advisory) => None,
            "CannotOnUsedLogs" if ops.iter().all(is_used) => None,
            "CannotOnNewLogs" if !ops.iter().all(is_used) => None,
            "CannotWhileOthersDo" => {
                let is_alone = self.shared.joint.fetch_add(1, Ordering::SeqCst) == 0;
                std::thread::sleep(Duration::from_micros(50));
                self.shared.joint.fetch_sub(1, Ordering::SeqCst);
                is_alone.then(|| self.together(ops))
            }
            "ChargesWhatFits" => Some(self.one_by_one(ops)),
            "ChangesOneAfterTheOther" if ops.iter().all(is_plain) => Some(self.one_by_one(ops)),
            "LeavesHalfAJointCall" => {
                let first = ops[0].op;
                let half = |_: &Kept| drop(self.apply_step(first));
                let whole = || self.together(ops);
                Some(self.in_halves(self.id(first.log), half, whole).await)
            }
            _ => Some(self.together(ops)),
        }
    }
}
