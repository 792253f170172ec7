//! Several operations as one, with one flaw.

use limiter_core::Timestamp;
use limiter_core::store::*;

use super::{Flawed, Id, Kept, clock, time, wait};

/// Returns the number of the operation that denies the others.
fn denier(flaw: &str, ops: &[JointOp<'_>], alone: &[Facts]) -> Option<usize> {
    let repeats = |i: usize| matches!(alone[i].outcome, Outcome::Repeated { .. });
    let denies = |i: &usize| match flaw {
        "RecordsDeny" => !alone[*i].admitted && !ops[*i].is_advisory,
        "AdvisoryOperationsDeny" => !alone[*i].admitted && ops[*i].op.mode != Mode::Record,
        "PeeksDoNotDeny" if ops[*i].op.mode == Mode::Peek => false,
        "AdvisoryRepetitionsDeny" if repeats(*i) => !alone[*i].admitted,
        "RepetitionsDoNotDeny" if repeats(*i) => false,
        _ => ops[*i].denies(alone[*i].admitted),
    };
    let denying: Vec<usize> = (0..ops.len()).filter(denies).collect();
    let repeated = || denying.iter().copied().find(|i| repeats(*i));
    match flaw {
        "DeniesByTheFirstOfAll" => denying.first().copied(),
        "DeniesByTheLast" => denying.last().copied(),
        "DeniesByAll" => None,
        _ => repeated().or(denying.first().copied()),
    }
}

/// Applies operations to logs as one.
fn apply(flaw: &str, logs: &mut [Log], ops: &[JointOp<'_>], now: Timestamp) -> Vec<Facts> {
    let mut ops = ops.to_vec();
    let newest = |log: &Log| {
        let all = "1/1us".parse().unwrap();
        log.clone().apply(&Op::peek("", &all), time(0)).log.newest
    };
    if flaw == "OneClockForAllLogs" {
        let latest = logs.iter().filter_map(newest).max().unwrap_or_default();
        for joint in &mut ops {
            if let At::Given(given) = joint.op.at {
                joint.op.at = At::Given(given.max(latest));
            }
        }
    }
    if flaw == "LosesIdsOfJointAppends" {
        ops.iter_mut().for_each(|joint| joint.op.id = None);
    }
    let alone: Vec<Facts> = logs
        .iter()
        .zip(&ops)
        .map(|(log, joint)| log.clone().apply(&joint.op, now))
        .collect();
    let denier = denier(flaw, &ops, &alone);
    let any_denies = (0..ops.len()).any(|i| ops[i].denies(alone[i].admitted));
    let all = ops.iter().zip(logs).enumerate();
    let applied = all.map(|(i, (joint, log))| {
        let repeats = matches!(alone[i].outcome, Outcome::Repeated { .. });
        let is_held = match flaw {
            "DeniesByAll" => any_denies && !joint.denies(alone[i].admitted),
            _ => denier.is_some_and(|denier| denier != i),
        };
        let is_held = match flaw {
            "HoldsNoRecords" if joint.op.mode == Mode::Record => false,
            "HoldsWhatKeepsItsCharge" => is_held && !repeats,
            "HoldsRepetitions" => is_held && !joint.keeps_charge,
            "HoldsAdvisoryOperationsOnly" => is_held && joint.is_advisory && !joint.keeps_charge,
            "HoldsTheFirstOnly" => is_held && i == 0 && !joint.keeps_charge && !repeats,
            "ForgetsTheFifth" if i > 3 => true,
            _ => is_held && !joint.keeps_charge && !repeats,
        };
        let before = log.clone().apply(&joint.op.to_peek(), now).log;
        let mut facts = log.apply(
            &if is_held {
                joint.op.to_peek()
            } else {
                joint.op
            },
            now,
        );
        match flaw {
            "FactsBeforeJointAppends" => facts.log = before,
            "JointWaitsFromNewest" => facts.log.clock = facts.log.now,
            _ => {}
        }
        facts
    });
    applied.collect()
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
        let ids: Vec<Id> = ops.iter().map(id).collect();
        let all = &mut *self.shared.logs.lock().unwrap();
        let now = clock();
        let mut taken = |id| all.remove(id).filter(|kept| kept.until > now);
        let kept: Vec<Kept> = ids.iter().map(|id| taken(id).unwrap_or_default()).collect();
        let mut logs: Vec<Log> = kept.iter().map(|kept| kept.log.clone()).collect();
        let facts = apply(self.flaw, &mut logs, ops, time(now));
        for ((id, kept), log) in ids.into_iter().zip(kept).zip(logs) {
            let Some(right) = log.expires_at() else {
                continue;
            };
            let is_kept = kept.until > 0 && self.is("KeepsTheExpiryOfJointAppends");
            let until = if is_kept {
                kept.until
            } else {
                right.as_micros()
            };
            all.insert(id, Kept { log, until });
        }
        facts.into_iter().map(Ok).collect()
    }

    fn one_by_one(&self, ops: &[JointOp<'_>]) -> JointFacts {
        let facts = ops.iter().map(|joint| {
            // On a busy machine, the others run only if this thread sleeps.
            std::thread::sleep(std::time::Duration::from_micros(50));
            self.apply_step(joint.op)
        });
        facts.collect()
    }

    /// Returns `true` if a log has an entry.
    fn is_used(&self, joint: &JointOp<'_>) -> bool {
        !self.copy(&self.id(joint.op.log)).log.is_empty()
    }

    pub(super) async fn apply_joint(&self, ops: &[JointOp<'_>]) -> Option<JointFacts> {
        let is_plain = |joint: &JointOp<'_>| {
            let facts = self.apply_step(joint.op.to_peek());
            joint.op.id.is_none() && facts.is_ok_and(|facts| facts.admitted)
        };
        match self.flaw {
            "ChangesALogAndCannot" => {
                _ = self.apply_step(ops[0].op);
                None
            }
            "CannotIfAdvisory" if ops.iter().any(|joint| joint.is_advisory) => None,
            "CannotOnUsedLogs" if ops.iter().all(|joint| self.is_used(joint)) => None,
            "ChargesWhatFits" => Some(self.one_by_one(ops)),
            "ChangesOneAfterTheOther" if ops.iter().all(is_plain) => Some(self.one_by_one(ops)),
            "LeavesHalfAJointCall" => {
                let _guard = self.shared.lock.lock().await;
                let before: Vec<Kept> = ops
                    .iter()
                    .map(|op| self.copy(&self.id(op.op.log)))
                    .collect();
                _ = self.apply_step(ops[0].op);
                wait().await;
                for (joint, before) in ops.iter().zip(before) {
                    self.with(&self.id(joint.op.log), |kept, _| *kept = before);
                }
                Some(self.together(ops))
            }
            _ => Some(self.together(ops)),
        }
    }
}
