//! Several operations as one, with one flaw.

use std::sync::atomic::Ordering;
use std::time::Duration;

use limiter_core::Error;
use limiter_core::store::*;

use super::{Flawed, Kept, clock, time};

impl Flawed {
    /// Applies operations as one.
    fn together(&self, ops: &[JointOp<'_>]) -> Result<JointFacts, Error> {
        let id = |joint: &JointOp<'_>| {
            let name = match self.flaw {
                "JoinsUnderTheFirstName" => ops[0].op.log.name,
                _ => joint.op.log.name,
            };
            self.id(LogKey::new(name, joint.op.log.key))
        };
        let checked = |joint: &JointOp<'_>| self.check(joint.op.log);
        let failed: Vec<Option<Error>> = ops.iter().map(|joint| checked(joint).err()).collect();
        let mut all = self.shared.logs.lock().unwrap();
        let now = clock();
        let mut logs: Vec<Kept> = Vec::new();
        let mut sound: Vec<JointOp<'_>> = Vec::new();
        for (joint, error) in ops.iter().zip(&failed) {
            match error {
                Some(error) if !joint.is_advisory => return Err(error.clone()),
                Some(_) => {}
                None => {
                    let kept = all.get(&id(joint)).filter(|kept| kept.until > now);
                    logs.push(kept.cloned().unwrap_or_default());
                    sound.push(*joint);
                }
            }
        }
        let each = logs.iter().zip(&sound);
        let alone = each.map(|(kept, joint)| kept.log.clone().apply(&joint.op, time(now)));
        let alone: Vec<Facts> = alone.collect();
        let held: Vec<bool> = JointOp::held(&sound, &alone).collect();
        let each = sound.iter().zip(logs).zip(held);
        let applied = each.map(|((joint, mut kept), is_held)| {
            let op = if is_held {
                joint.op.to_peek()
            } else {
                joint.op
            };
            let facts = kept.log.apply(&op, time(now));
            if kept.until == 0 || !self.is("KeepsTheExpiryOfJointAppends") {
                kept.until = kept.log.expires_at().unwrap_or_default().as_micros();
            }
            if !kept.log.is_empty() {
                all.insert(id(joint), kept);
            }
            facts
        });
        let applied: Vec<Facts> = applied.collect();
        let mut applied = applied.into_iter();
        let result = |error: Option<Error>| {
            error.map_or_else(|| applied.next().map(Ok), |error| Some(Err(error)))
        };
        Ok(failed.into_iter().filter_map(result).collect())
    }

    fn one_by_one(&self, ops: &[JointOp<'_>]) -> JointFacts {
        let facts = ops.iter().map(|joint| {
            // On a busy machine, the others run only if this thread sleeps.
            std::thread::sleep(Duration::from_micros(50));
            self.apply_step(joint.op)
        });
        facts.collect()
    }

    pub(super) async fn apply_joint(
        &self,
        ops: &[JointOp<'_>],
    ) -> Result<Option<JointFacts>, Error> {
        let is_plain = |joint: &JointOp<'_>| {
            let facts = self.apply_step(joint.op.to_peek());
            joint.op.id.is_none() && facts.is_ok_and(|facts| facts.admitted)
        };
        let is_short = |until: u64| (1..60_000).contains(&until.saturating_sub(super::clock()));
        if self.is("Pauses")
            && ops
                .iter()
                .any(|joint| is_short(self.copy(&self.id(joint.op.log)).until))
        {
            std::thread::sleep(Duration::from_millis(60));
        }
        Ok(match self.flaw {
            "ChangesALogAndCannot" => {
                _ = self.apply_step(ops[0].op);
                None
            }
            "CannotIfAdvisory" if ops.iter().any(|joint| joint.is_advisory) => None,
            "CannotWhileOthersDo" => {
                let is_alone = self.shared.joint.fetch_add(1, Ordering::SeqCst) == 0;
                std::thread::sleep(Duration::from_micros(50));
                self.shared.joint.fetch_sub(1, Ordering::SeqCst);
                is_alone.then(|| self.together(ops)).transpose()?
            }
            "ChangesOneAfterTheOther" if ops.iter().all(is_plain) => Some(self.one_by_one(ops)),
            "LeavesHalfAJointCall" => {
                let first = ops[0].op;
                let half = |_: &Kept| drop(self.apply_step(first));
                let whole = || self.together(ops);
                Some(self.in_halves(self.id(first.log), half, whole).await?)
            }
            _ => Some(self.together(ops)?),
        })
    }
}
