//! A store of core's logs, with one flaw.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use limiter_core::store::{
    Facts, JointFacts, JointOp, Log, LogKey, Mode, Op, Outcome, Settlement, SettlementFacts, decide,
};
use limiter_core::{
    BoxFuture, Decision, Error, ErrorKind, Name, SharedStore, Timestamp, WindowStore,
};
use limiter_testkit::conformance::Phase;

use super::{Change, Expiry, Flaw};

type Id = (Name, Vec<u8>);

/// A log, and when it expires.
#[derive(Clone, Debug, Default)]
struct Kept {
    log: Log,
    until: u64,
}

/// What the handles of a store share.
#[derive(Debug, Default)]
struct Shared {
    logs: Mutex<HashMap<Id, Kept>>,
    /// Stores that take steps hold it meanwhile. Its waiters queue: on a busy machine, spinning would take too long.
    lock: tokio::sync::Mutex<()>,
}

/// A handle.
#[derive(Debug)]
pub(crate) struct Flawed {
    flaw: &'static Flaw,
    number: u8,
    shared: Arc<Shared>,
}

fn clock() -> u64 {
    Timestamp::try_from(SystemTime::now()).unwrap().as_micros()
}

/// Is pending once, and lets other threads run.
async fn wait() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut waited, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    std::thread::yield_now();
}

/// Returns the operation in another mode.
fn in_mode(mut op: Op<'_>, mode: Mode) -> Op<'_> {
    op.mode = mode;
    op
}

impl Flawed {
    fn is(&self, name: &str) -> bool {
        self.flaw.name == name
    }

    /// Returns the name and the key under which the store keeps a log.
    fn id(&self, log: LogKey<'_>) -> Id {
        let (mut name, mut key) = (log.name, log.key.to_vec());
        if let Change::Log(change) = self.flaw.change {
            let (text, changed) = change(name.as_str(), &key);
            (name, key) = (Name::new(&text), changed);
        }
        if self.is("HidesItsLogs") {
            key.push(self.number);
        }
        (name, key)
    }

    /// Makes a change to a log at the time of the store's clock. An expired log is forgotten first.
    fn with<T>(&self, id: &Id, change: impl FnOnce(&mut Kept, Timestamp) -> T) -> T {
        let (logs, now) = (&mut *self.shared.logs.lock().unwrap(), clock());
        if self.is("ForgetsWhenThereAreMany") && logs.len() > 1_000 {
            logs.clear();
        }
        let kept = logs.entry(id.clone()).or_default();
        if kept.until <= now {
            *kept = Kept::default();
        }
        let stated = if let Change::Clock(change) = self.flaw.change {
            change(now)
        } else {
            now
        };
        let result = change(kept, Timestamp::from_micros_saturating(stated));
        if kept.log.is_empty() {
            logs.remove(id);
        }
        result
    }

    /// Returns a copy of a log.
    fn copy(&self, id: &Id) -> Kept {
        self.with(id, |kept, _| kept.clone())
    }

    fn apply_step(&self, mut op: Op<'_>) -> Result<Facts, Error> {
        let facts = self.with(&self.id(op.log), |kept, clock| {
            if let Change::Op(change) = self.flaw.change {
                change(&mut op, self.number);
            }
            let before = kept.until;
            let mut facts = kept.log.apply(&op, clock);
            if let Change::Facts(change) = self.flaw.change {
                change(&mut facts);
            }
            let appended = matches!(facts.outcome, Outcome::Appended(_));
            let expires_at = kept.log.expires_at().map(Timestamp::as_micros);
            let right = expires_at.filter(|_| appended).unwrap_or(before);
            let expiry = Expiry {
                op: &op,
                now: facts.log.now.as_micros(),
                clock,
                before,
                right,
            };
            kept.until = match self.flaw.change {
                Change::Expiry(until) if appended || op.mode == Mode::Peek => until(&expiry),
                _ => right,
            };
            facts
        });
        if self.is("DeniesByError") && !facts.admitted {
            return Err(Error::new(ErrorKind::Unavailable, "denied"));
        }
        Ok(facts)
    }

    fn settle_step(&self, mut settlement: Settlement<'_>) -> SettlementFacts {
        if let Change::Settlement(change) = self.flaw.change {
            change(&mut settlement);
        }
        let mut id = self.id(settlement.log);
        if self.is("SettlesOnAnyKey") {
            let ids: Vec<Id> = self.shared.logs.lock().unwrap().keys().cloned().collect();
            let applies = |id: &Id| self.settle_copy(id, &settlement).applied;
            id = ids.into_iter().find(applies).unwrap_or(id);
        }
        self.with(&id, |kept, clock| kept.log.settle(&settlement, clock))
    }

    fn settle_copy(&self, id: &Id, settlement: &Settlement<'_>) -> SettlementFacts {
        self.with(id, |kept, clock| kept.log.clone().settle(settlement, clock))
    }

    fn reset_step(&self, log: LogKey<'_>) -> bool {
        let take = |kept: &mut Kept, _| !std::mem::take(kept).log.is_empty();
        let found = self.with(&self.id(log), take);
        if self.is("ResetsAllKeys") {
            self.shared.logs.lock().unwrap().clear();
        }
        found
    }

    /// Makes one call. A store that takes steps holds its lock meanwhile, with a pause before and after the change.
    async fn in_steps<T>(&self, change: impl FnOnce() -> T) -> T {
        if self.flaw.phase != Phase::Cancel {
            return change();
        }
        if self.is("BlocksWhenContended") && self.shared.lock.try_lock().is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (mut guard, mut left) = (Some(self.shared.lock.lock().await), None);
        if self.is("LeavesItsLock") {
            left = guard.take().map(ManuallyDrop::new);
        }
        wait().await;
        let result = change();
        wait().await;
        left.map(ManuallyDrop::into_inner);
        result
    }

    /// Changes half of the log, waits, and then changes the log as it was before.
    async fn in_halves<T>(
        &self,
        log: LogKey<'_>,
        half: impl FnOnce(&Kept),
        whole: impl FnOnce() -> T,
    ) -> T {
        let (_guard, id) = (self.shared.lock.lock().await, self.id(log));
        let before = self.copy(&id);
        half(&before);
        wait().await;
        self.with(&id, |kept, _| *kept = before);
        whole()
    }

    async fn sweep(&self) {
        let has_expired = |kept: &Kept| kept.until <= clock();
        let expired = || -> Vec<Id> {
            let logs = self.shared.logs.lock().unwrap();
            let expired = logs.iter().filter(|(_, kept)| has_expired(kept));
            expired.map(|(id, _)| id.clone()).collect()
        };
        let early = expired();
        if self.is("SweepsInTwoSteps") {
            wait().await;
        }
        let in_two_steps = self.is("SweepsInTwoSteps");
        self.shared.logs.lock().unwrap().retain(|id, kept| {
            let is_swept = if self.is("SweepsAllNames") {
                early.iter().any(|other| other.1 == id.1)
            } else if in_two_steps {
                early.contains(id)
            } else {
                has_expired(kept)
            };
            !is_swept
        });
    }

    /// Applies operations as one, after a change to each.
    pub(super) fn together(
        &self,
        ops: &[JointOp<'_>],
        change: fn(&mut JointOp<'_>),
    ) -> Option<JointFacts> {
        let mut ops = ops.to_vec();
        ops.iter_mut().for_each(change);
        let ids: Vec<Id> = ops.iter().map(|joint| self.id(joint.op.log)).collect();
        let (all, now) = (&mut *self.shared.logs.lock().unwrap(), clock());
        let mut take = |id| all.remove(id).filter(|kept| kept.until > now);
        let kept: Vec<Kept> = ids.iter().map(|id| take(id).unwrap_or_default()).collect();
        let mut logs: Vec<Log> = kept.iter().map(|kept| kept.log.clone()).collect();
        let now = Timestamp::from_micros_saturating(now);
        let facts = Log::apply_all(&mut logs, &ops, now);
        for ((id, kept), log) in ids.into_iter().zip(kept).zip(logs) {
            let Some(right) = log.expires_at() else {
                continue;
            };
            let is_first = kept.until == 0 || !self.is("KeepsTheExpiryOfJointAppends");
            let until = if is_first {
                right.as_micros()
            } else {
                kept.until
            };
            all.insert(id, Kept { log, until });
        }
        Some(facts.into_iter().map(Ok).collect())
    }

    pub(super) fn first_alone(&self, ops: &[JointOp<'_>]) -> Option<JointFacts> {
        _ = self.apply_step(ops[0].op);
        None
    }

    pub(super) fn one_by_one(&self, ops: &[JointOp<'_>]) -> Option<JointFacts> {
        let facts = ops.iter().map(|joint| {
            // On a busy machine, the others run only if this thread sleeps.
            std::thread::sleep(Duration::from_micros(50));
            self.apply_step(joint.op)
        });
        Some(facts.collect())
    }

    /// Changes one log after the other, if all operations are admitted.
    pub(super) fn in_turn(&self, ops: &[JointOp<'_>]) -> Option<JointFacts> {
        let is_plain = |joint: &JointOp<'_>| {
            let facts = self.apply_step(joint.op.to_peek());
            joint.op.id.is_none() && facts.is_ok_and(|facts| facts.admitted)
        };
        if ops.iter().all(is_plain) {
            self.one_by_one(ops)
        } else {
            self.together(ops, |_| ())
        }
    }
}

#[async_trait]
impl WindowStore for Flawed {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let (id, whole) = (self.id(op.log), || self.apply_step(op));
        match self.flaw.name {
            "ReadsTheClockTwice" if op.id.is_none() => {
                let admitted = self.apply_step(op.to_peek())?.admitted;
                let facts = whole()?;
                return Ok(Facts { admitted, ..facts });
            }
            "BlocksItsThread" => std::thread::sleep(Duration::from_millis(5)),
            "CountsIn16Bits" => self.with(&id, |kept, _| {
                if kept.log.len() == 1 << 16 {
                    *kept = Kept::default();
                }
            }),
            "ChecksThenAdds" => {
                let admitted = self.apply_step(op.to_peek())?.admitted;
                wait().await;
                let appends = op.appends(admitted);
                let mode = if appends { Mode::Record } else { Mode::Peek };
                let facts = self.apply_step(in_mode(op, mode))?;
                return Ok(Facts { admitted, ..facts });
            }
            // Applies it to a copy, which then replaces the log: other handles do not wait meanwhile.
            "HidesItsLock" => {
                let mut copy = self.copy(&id);
                let now = Timestamp::from_micros_saturating(clock());
                let facts = copy.log.apply(&op, now);
                copy.until = copy.log.expires_at().map_or(0, Timestamp::as_micros);
                std::thread::yield_now();
                self.with(&id, |kept, _| *kept = copy);
                return Ok(facts);
            }
            "LeavesAnEntryWithoutItsId" => {
                let half = |before: &Kept| {
                    let now = Timestamp::from_micros_saturating(clock());
                    let outcome = before.log.clone().apply(&op, now).outcome;
                    if op.id.is_some() && !matches!(outcome, Outcome::Repeated(_)) {
                        let mut without = op;
                        without.id = None;
                        _ = self.apply_step(without);
                    }
                };
                return self.in_halves(op.log, half, whole).await;
            }
            "LeavesAnAppendWithoutItsExpiry" => {
                let half = |before: &Kept| {
                    _ = self.apply_step(op);
                    if before.until > 0 {
                        self.with(&id, |kept, _| kept.until = before.until);
                    }
                };
                return self.in_halves(op.log, half, whole).await;
            }
            _ => {}
        }
        self.in_steps(whole).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let whole = || self.settle_step(settlement);
        Ok(match self.flaw.name {
            "FindsThenSettles" => {
                let id = self.id(settlement.log);
                let applied = self.settle_copy(&id, &settlement).applied;
                std::thread::yield_now();
                let facts = whole();
                SettlementFacts { applied, ..facts }
            }
            "LeavesHalfASettlement" if settlement.cost > 0 => {
                let mut refund = settlement;
                refund.cost = 0;
                let half = |_: &Kept| drop(self.settle_step(refund));
                self.in_halves(settlement.log, half, whole).await
            }
            _ => self.in_steps(whole).await,
        })
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        if self.is("ResetsInTwoSteps") {
            let found = !self.copy(&self.id(log)).log.is_empty();
            wait().await;
            self.reset_step(log);
            return Ok(found);
        }
        Ok(self.in_steps(|| self.reset_step(log)).await)
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        match (self.flaw.name, op.checked()) {
            ("DecidesAtOnceWithoutChecks", _) => {
                Some(self.apply_step(op).map(|facts| decide(&op, facts)))
            }
            ("AppliesWhatItDoesNotDecideAtOnce", Ok(op)) => {
                _ = self.apply_step(op);
                None
            }
            _ => None,
        }
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        Ok(if let Change::Together(apply) = self.flaw.change {
            apply(self, ops)
        } else {
            None
        })
    }
}

/// A store under test: its handles, one that is opened late, and its sweep.
pub(crate) struct StoreUnderTest {
    pub(crate) handles: Vec<SharedStore>,
    pub(crate) late: Box<dyn FnOnce() -> SharedStore + Send>,
    pub(crate) sweep: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl StoreUnderTest {
    pub(crate) fn new(flaw: &'static Flaw) -> Self {
        let shared = Arc::new(Shared::default());
        let handle = move |number| {
            let shared = Arc::clone(&shared);
            Arc::new(Flawed {
                flaw,
                number,
                shared,
            })
        };
        let (first, second) = (handle(0), handle(1));
        let sweeper = Arc::clone(&first);
        let late = move || -> SharedStore {
            let late = handle(2);
            if late.is("OpeningClears") {
                late.shared.logs.lock().unwrap().clear();
            }
            late
        };
        Self {
            handles: vec![first, second],
            late: Box::new(late),
            sweep: Arc::new(move || {
                let sweeper = Arc::clone(&sweeper);
                Box::pin(async move { sweeper.sweep().await })
            }),
        }
    }
}
