//! Flaws of concurrency and of cancellation.

use std::mem::ManuallyDrop;
use std::time::Duration;

use limiter_core::Error;
use limiter_core::store::{At, Facts, LogKey, Mode, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Policy, policy};
use limiter_testkit::conformance::{Phase, Sentence};
use tokio::sync::MutexGuard;

use super::store::{Flawed, Kept};
use super::{in_mode, wait};

fn meter() -> Policy {
    policy!("9/1us")
}

impl Flawed {
    /// Callers wait in a queue: on a busy machine, spinning would take longer than a call may.
    async fn lock(&self) -> MutexGuard<'_, ()> {
        if self.is("BlocksWhenContended") && self.shared.lock.try_lock().is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.shared.lock.lock().await
    }

    /// Makes one call. A store that takes steps holds its lock meanwhile, with a pause before and after the change.
    async fn in_steps<T>(&self, log: LogKey<'_>, change: impl FnOnce() -> T) -> T {
        let (phase, sentence, name, _) = self.flaw;
        if self.is("HidesItsLogs") {
            let id = self.id(log);
            let mut own = self.own.lock().unwrap();
            if let Some(hidden) = own.remove(&id) {
                self.with(&id, |kept| *kept = hidden);
            }
            let answer = change();
            own.insert(id.clone(), self.copy(&id));
            return answer;
        }
        let takes_steps = *phase == Phase::Cancel && *sentence != Sentence::T5;
        if !takes_steps && !["NoneInSteps", "BlocksWhenContended"].contains(name) {
            return change();
        }
        let (mut guard, mut left) = (Some(self.lock().await), None);
        if self.is("LeavesItsLock") {
            left = guard.take().map(ManuallyDrop::new);
        }
        wait().await;
        let answer = change();
        wait().await;
        left.map(ManuallyDrop::into_inner);
        answer
    }

    /// Changes half of the log, waits, and then changes the log as it was before.
    async fn in_halves<T>(
        &self,
        log: LogKey<'_>,
        half: impl FnOnce(&Kept),
        whole: impl FnOnce() -> T,
    ) -> T {
        let (_guard, id) = (self.lock().await, self.id(log));
        let before = self.copy(&id);
        half(&before);
        wait().await;
        self.with(&id, |kept| *kept = before);
        whole()
    }

    async fn checks_then_adds(&self, op: Op<'_>) -> Result<Facts, Error> {
        let admitted = self.apply_step(in_mode(op, Mode::Peek))?.admitted;
        wait().await;
        std::thread::yield_now();
        let mode = if op.appends(admitted) {
            Mode::Record
        } else {
            Mode::Peek
        };
        Ok(Facts {
            admitted,
            ..self.apply_step(in_mode(op, mode))?
        })
    }

    /// Applies an operation to a copy of the log, which then replaces the log: other handles do not wait meanwhile.
    fn hides_its_lock(&self, op: &Op<'_>) -> Facts {
        let id = self.id(op.log);
        let mut copy = self.copy(&id);
        let facts = copy.log.apply(op, self.clock_now());
        std::thread::yield_now();
        self.with(&id, |kept| *kept = copy);
        facts
    }

    /// Until the handle notices a change, a denied operation stays denied.
    fn hides_its_denials(&self, op: Op<'_>) -> Result<Facts, Error> {
        let key = op.log.to_bytes();
        let same = |facts: &&Facts| {
            op.at == At::Given(facts.log.now) && facts.log.usage.len() == op.policy.limits().len()
        };
        let denied = self.denied.lock().unwrap().get(&key).filter(same).cloned();
        if let Some(facts) = denied.filter(|_| op.mode == Mode::Acquire && op.id.is_none()) {
            return Ok(facts);
        }
        let facts = self.apply_step(op)?;
        if op.mode == Mode::Acquire
            && !facts.admitted
            && facts.outcome == Outcome::Nothing
            && op.cost == 1
        {
            self.denied.lock().unwrap().insert(key, facts.clone());
        }
        Ok(facts)
    }

    pub(super) async fn apply_slowly(&self, op: Op<'_>) -> Result<Facts, Error> {
        let whole = || self.apply_step(op);
        match self.flaw.2 {
            "ChecksThenAdds" => self.checks_then_adds(op).await,
            "HidesItsLock" => Ok(self.hides_its_lock(&op)),
            "HidesItsDenials" => self.hides_its_denials(op),
            "LeavesAnEntryWithoutItsId" => {
                let repeats = |kept: &Kept| {
                    let outcome = kept.log.clone().apply(&op, self.clock_now()).outcome;
                    matches!(outcome, Outcome::Repeated(_))
                };
                let half = |before: &Kept| {
                    if op.id.is_some() && !repeats(before) {
                        let mut without = op;
                        without.id = None;
                        _ = self.apply_step(without);
                    }
                };
                self.in_halves(op.log, half, whole).await
            }
            "LeavesAnAppendWithoutItsExpiry" => {
                let half = |before: &Kept| {
                    _ = self.apply_step(op);
                    if before.until > 0 {
                        self.with(&self.id(op.log), |kept| kept.until = before.until);
                    }
                };
                self.in_halves(op.log, half, whole).await
            }
            _ => self.in_steps(op.log, whole).await,
        }
    }

    pub(super) async fn settle_slowly(
        &self,
        settlement: Settlement<'_>,
    ) -> Result<SettlementFacts, Error> {
        let whole = || self.settle_step(settlement);
        let Settlement { log, receipt, .. } = settlement;
        match self.flaw.2 {
            "FindsThenSettles" => {
                // Another call may remove the entry in the meantime.
                let applied = self
                    .copy(&self.id(log))
                    .log
                    .settle(&settlement, self.clock_now())
                    .applied;
                std::thread::yield_now();
                Ok(SettlementFacts {
                    applied,
                    ..whole()?
                })
            }
            "SettlesInTwoSteps" => {
                let before = self.copy(&self.id(log));
                wait().await;
                std::thread::yield_now();
                self.with(&self.id(log), |kept| *kept = before);
                whole()
            }
            "LeavesARefundWithoutItsId" if settlement.cost == 0 => {
                // Removes the entry, and appends it without the id.
                let half = |before: &Kept| {
                    if self
                        .settle_step(settlement)
                        .is_ok_and(|facts| facts.applied)
                    {
                        let cost = before.log.cost() - self.copy(&self.id(log)).log.cost();
                        let policy = meter();
                        let op = Op::record(log.key, &policy)
                            .with_name(log.name)
                            .with_cost(cost);
                        _ = self
                            .apply_step(op.with_limiter_policy(settlement.policy).at(receipt.at()));
                    }
                };
                self.in_halves(log, half, whole).await
            }
            "LeavesHalfASettlement" if settlement.cost > 0 => {
                let half = |_: &Kept| {
                    let mut refund = settlement;
                    refund.cost = 0;
                    _ = self.settle_step(refund);
                };
                self.in_halves(log, half, whole).await
            }
            _ => self.in_steps(log, whole).await,
        }
    }

    pub(super) async fn reset_slowly(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let whole = || self.reset_step(log);
        match self.flaw.2 {
            "ResetsInTwoSteps" => {
                let found = !self.copy(&self.id(log)).log.is_empty();
                wait().await;
                std::thread::yield_now();
                whole().map(|_| found)
            }
            "LeavesHalfAReset" => {
                // Leaves one entry.
                let half = |_: &Kept| {
                    let policy = meter();
                    let op = Op::record(log.key, &policy).with_name(log.name);
                    _ = self.apply_step(op.at(self.clock_now()));
                };
                self.in_halves(log, half, whole).await
            }
            _ => self.in_steps(log, whole).await,
        }
    }
}
