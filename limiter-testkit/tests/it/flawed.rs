//! A store of core's logs with one flaw, of a kind that no mutation of a log makes: keys, clocks, expiry, handles, concurrency and
//! cancellation. `scripts/mutants` checks that the suite finds wrong logs.

mod joint;
mod rules;

use std::collections::HashMap;
use std::mem::{ManuallyDrop, take};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use Phase::{Cancel, Cases, Contention, Forgetting, Handles, LongLog, Several, StoreClock};
use Sentence::*;
use async_trait::async_trait;
use limiter_core::store::*;
use limiter_core::{
    BoxFuture, Clock, Decision, Error, ErrorKind, Name, Policy, Receipt, Timestamp, Window,
};
use limiter_core::{WindowStore, policy};
use limiter_testkit::MockClock;
use limiter_testkit::conformance::{Phase, Sentence};

/// A phase that always finds the flaw, a sentence that the failure cites, and the name.
pub(crate) type Flaw = (Phase, Sentence, &'static str);

pub(crate) const FLAWS: &[Flaw] = &[
    (StoreClock, T2, "ReadsTheClockTwice"),
    (StoreClock, T3, "RunsBack"),
    (StoreClock, T3, "WaitsFromNewest"),
    (StoreClock, T4, "StopsItsClock"),
    (StoreClock, T4, "HasAClockThatStands"),
    (StoreClock, T4, "SleepsInVain"),
    (StoreClock, T4, "TellsMilliseconds"),
    (Cancel, T5, "BlocksItsThread"),
    (Cancel, T5, "BlocksWhenContended"),
    (Cases, L1, "MixesUpKeys"),
    (Cases, L1, "CutsKeys"),
    (Cases, L1, "EndsKeysAtNul"),
    (Cases, L1, "ReadsKeysAsNumbers"),
    (Cases, L1, "IgnoresNames"),
    (Cases, L1, "JoinsNamesAndKeys"),
    (Cases, L1, "SharesTheEmptyKey"),
    (Cases, L1, "TakesNoNameForDefault"),
    (Cases, L3, "IgnoresWeights"),
    (Cases, L9, "IgnoresIds"),
    (Cases, L2, "CountsWithoutTheLease"),
    (Cases, L9, "FreesIdsWithoutTheLease"),
    (Cases, S4, "EndsReceiptsWithoutTheLease"),
    (Cases, M2, "MergesWithoutTheLease"),
    (Cases, M1, "MergesByTheShortestWindow"),
    (Cases, M1, "MergesByTheLongestWindow"),
    (Cases, M1, "MergesAcrossItsOwnWindows"),
    (Cases, M1, "MergesAcrossTheLimitersWindows"),
    (Cases, S4, "RefundsWhatHasLeft"),
    (Cases, S1, "SettlesOnAnyKey"),
    (Cases, S8, "ResetsAllKeys"),
    (Cases, S9, "RenewsByTheLimitersPolicy"),
    (Cases, E1, "DeniesByError"),
    (Cases, E2, "AppliesWhatItDoesNotDecideAtOnce"),
    (Cases, E2, "DecidesAtOnceWithoutChecks"),
    (Contention, L12, "ChecksThenAdds"),
    (Contention, L12, "FindsThenSettles"),
    (Contention, L12, "ResetsInTwoSteps"),
    (Handles, L12, "HidesItsLock"),
    (Handles, L12, "HidesItsLogs"),
    (Handles, L12, "HidesItsIds"),
    (Handles, L12, "OpeningClears"),
    (LongLog, L14, "CountsIn16Bits"),
    (Several, A2, "SharesItsIdentity"),
    (Several, A1, "ChangesALogAndCannot"),
    (Several, A1, "CannotOnUsedLogs"),
    (Several, A1, "CannotOnNewLogs"),
    (Several, A1, "CannotWhileOthersDo"),
    (Several, A2, "ChangesOneAfterTheOther"),
    (Several, A2, "JoinsUnderTheFirstName"),
    (Several, A2, "OneClockForAllLogs"),
    (Several, T3, "JointWaitsFromNewest"),
    (Several, A3, "RecordsDeny"),
    (Several, A3, "AdvisoryOperationsDeny"),
    (Several, A3, "KeptChargesDoNotDeny"),
    (Several, A3, "PeeksDoNotDeny"),
    (Several, A3, "AdvisoryRepetitionsDeny"),
    (Several, A3, "RepetitionsDoNotDeny"),
    (Several, A4, "ForgetsTheFifth"),
    (Several, A4, "LosesIdsOfJointAppends"),
    (Several, A2, "FactsBeforeJointAppends"),
    (Several, A5, "ChargesWhatFits"),
    (Several, A5, "DeniesByTheFirstOfAll"),
    (Several, A5, "DeniesByTheLast"),
    (Several, A5, "DeniesByAll"),
    (Several, A5, "HoldsNoRecords"),
    (Several, A5, "HoldsWhatKeepsItsCharge"),
    (Several, A5, "HoldsAdvisoryOperationsOnly"),
    (Several, A5, "HoldsTheFirstOnly"),
    (Several, A6, "HoldsRepetitions"),
    (Several, F1, "KeepsTheExpiryOfJointAppends"),
    (Forgetting, F1, "WithoutTheLease"),
    (Forgetting, F1, "ByTheOwnWindow"),
    (Forgetting, F1, "ByTheDefaultWindow"),
    (Forgetting, F1, "AfterWholeMillis"),
    (Forgetting, F1, "AfterTheFirstAppend"),
    (Forgetting, F1, "AfterAPeek"),
    (Forgetting, F1, "WindowAfterTheClock"),
    (Forgetting, F1, "ForgetsWhenThereAreMany"),
    (Forgetting, F1, "SweepsInTwoSteps"),
    (Forgetting, L1, "SweepsAllNames"),
    (Forgetting, F2, "GivenTimesAsItsOwn"),
    (Forgetting, F1, "KeepsTheExpiryOfRenewals"),
    (Cancel, C1, "LeavesHalfASettlement"),
    (Cancel, C1, "LeavesAnEntryWithoutItsId"),
    (Cancel, C1, "LeavesAnAppendWithoutItsExpiry"),
    (Cancel, C1, "LeavesALogWithoutItsOldId"),
    (Cancel, C1, "LeavesAMergeWithoutItsAppend"),
    (Cancel, C1, "LeavesHalfAJointCall"),
    (Cancel, C2, "LeavesItsLock"),
];

/// Stores without a flaw. The second takes steps, the third applies only some operations as one, and the last lets
/// time pass before a joint call, as on a busy machine.
pub(crate) const RIGHT: [Flaw; 4] = [
    (Several, L1, "None"),
    (Cancel, C1, "NoneInSteps"),
    (Several, A1, "CannotIfAdvisory"),
    (Several, F1, "Pauses"),
];

/// Covers every entry.
static ALL: Policy = policy!("4503599627370496/9007199254740991us");

type Id = (Name, Vec<u8>);

/// A log, and when it expires.
#[derive(Clone, Debug, Default)]
struct Kept {
    log: Log,
    until: u64,
}

/// A clock that stands, also while it sleeps.
#[derive(Debug)]
struct Standing(u64);

impl Default for Standing {
    fn default() -> Self {
        Self(clock())
    }
}

impl Clock for Standing {
    fn now(&self) -> Timestamp {
        time(self.0)
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'_, ()> {
        Box::pin(wait())
    }
}

/// What the handles of a store share.
#[derive(Debug, Default)]
struct Shared {
    logs: Mutex<HashMap<Id, Kept>>,
    /// Stores that take steps hold it meanwhile. Its waiters queue: on a busy machine, spinning would take too long.
    lock: tokio::sync::Mutex<()>,
    stopped: MockClock,
    standing: Standing,
    /// How often it was asked for a node.
    asked: AtomicUsize,
    /// The number of joint calls under way.
    joint: AtomicUsize,
}

/// A handle.
#[derive(Clone, Debug)]
pub(crate) struct Flawed {
    phase: Phase,
    flaw: &'static str,
    number: u8,
    shared: Arc<Shared>,
}

fn clock() -> u64 {
    Timestamp::try_from(SystemTime::now()).unwrap().as_micros()
}

fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros_saturating(micros)
}

/// Is pending once, and lets other threads run.
async fn wait() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        match std::mem::replace(&mut waited, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    std::thread::yield_now();
}

impl Flawed {
    pub(crate) fn new((phase, _, flaw): Flaw) -> Self {
        Self {
            phase,
            flaw,
            number: 0,
            shared: Arc::default(),
        }
    }

    /// Returns another handle. The last one is opened after the others have written.
    pub(crate) fn handle(&self, number: u8) -> Self {
        if number == 2 && self.is("OpeningClears") {
            self.shared.logs.lock().unwrap().clear();
        }
        let shared = Arc::clone(&self.shared);
        Self {
            number,
            shared,
            ..*self
        }
    }

    fn is(&self, name: &str) -> bool {
        self.flaw == name
    }

    /// Returns the name and the key under which the store keeps a log.
    fn id(&self, log: LogKey<'_>) -> Id {
        let name = log.name;
        let key = log.key;
        let text = || String::from_utf8_lossy(key).into_owned();
        let key: Vec<u8> = match self.flaw {
            "MixesUpKeys" => text().into_bytes(),
            "CutsKeys" => key[..key.len().min(255)].into(),
            "EndsKeysAtNul" => key.split(|b| *b == 0).next().unwrap().into(),
            "ReadsKeysAsNumbers" => match text().trim().parse::<f64>() {
                Ok(number) => number.to_string().into_bytes(),
                Err(_) => key.into(),
            },
            "JoinsNamesAndKeys" => [name.as_str().as_bytes(), b":", key].concat(),
            "HidesItsLogs" => [key, &[self.number]].concat(),
            _ => key.into(),
        };
        match self.flaw {
            "IgnoresNames" | "JoinsNamesAndKeys" => (Name::new("all"), key),
            "SharesTheEmptyKey" if key.is_empty() => (Name::new("all"), key),
            "TakesNoNameForDefault" if name.as_str().is_empty() => (Name::default(), key),
            _ => (name, key),
        }
    }

    /// Makes a change to a log at the time of the store's clock. An expired log is forgotten first.
    fn with<T>(&self, id: &Id, change: impl FnOnce(&mut Kept, Timestamp) -> T) -> T {
        let logs = &mut *self.shared.logs.lock().unwrap();
        let now = match self.flaw {
            "SleepsInVain" => self.shared.standing.0,
            _ => clock(),
        };
        if self.is("ForgetsWhenThereAreMany") && logs.len() > 1_000 {
            logs.clear();
        }
        let kept = logs.entry(id.clone()).or_default();
        if kept.until <= now {
            *kept = Kept::default();
        }
        let stated = match self.flaw {
            "StopsItsClock" => now / 3_600_000_000 * 3_600_000_000,
            "TellsMilliseconds" => now / 1_000,
            _ => now,
        };
        let result = change(kept, time(stated));
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
        match self.flaw {
            "IgnoresWeights" => op.cost = 1,
            "IgnoresIds" => op.id = None,
            "HidesItsIds" => {
                let other = |id: EntryId| id.as_u128() ^ u128::from(self.number);
                op.id = op.id.map(|id| EntryId::from_u128(other(id)));
            }
            _ => {}
        }
        let facts = self.with(&self.id(op.log), |kept, clock| {
            let before = kept.until;
            let flawed = rules::apply(self.flaw, &mut kept.log, &op, clock);
            let mut facts = flawed.unwrap_or_else(|| kept.log.apply(&op, clock));
            match self.flaw {
                "RunsBack" => facts.log.now = facts.log.clock,
                "WaitsFromNewest" => facts.log.clock = facts.log.now,
                _ => {}
            }
            let appended = matches!(facts.outcome, Outcome::Appended(_));
            let right = kept.log.expires_at().filter(|_| appended);
            let right = right.map_or(before, Timestamp::as_micros);
            let now = facts.log.now.as_micros();
            let clock = clock.as_micros();
            let own = op.policy.longest_window().as_micros();
            let default = op.limiter_policy.unwrap_or(op.policy).longest_window();
            let window = op.retention().window.as_micros();
            kept.until = match self.flaw {
                "AfterAPeek" if op.mode == Mode::Peek => clock + own,
                _ if !appended => right,
                "WithoutTheLease" => {
                    let limits = [Some(op.policy), op.limiter_policy].into_iter().flatten();
                    let limits = limits.flat_map(Policy::limits);
                    let windows = limits.map(|limit| limit.stated_window().as_micros());
                    now + windows.max().unwrap_or_default()
                }
                "ByTheOwnWindow" => now + own,
                "ByTheDefaultWindow" => now + default.as_micros(),
                "AfterWholeMillis" => (now + window) / 1_000 * 1_000,
                "AfterTheFirstAppend" if before > 0 => before,
                "WindowAfterTheClock" => clock + window,
                "GivenTimesAsItsOwn" if op.at != At::StoreClock => now + window,
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
        settlement.receipt = rules::receipt(self.flaw, &settlement);
        let mut id = self.id(settlement.log);
        if self.is("SettlesOnAnyKey") {
            let ids: Vec<Id> = self.shared.logs.lock().unwrap().keys().cloned().collect();
            let applies = |id: &Id| self.settle_copy(id, &settlement).applied();
            id = ids.into_iter().find(applies).unwrap_or(id);
        }
        self.with(&id, |kept, clock| {
            let mut changed = settlement;
            if self.is("RenewsByTheLimitersPolicy") {
                changed.policy = changed.limiter_policy.unwrap_or(changed.policy);
            }
            let mut facts = kept.log.settle(&changed, clock);
            if changed.policy != settlement.policy {
                let peek = settlement.to_record(1).to_peek();
                facts.log = kept.log.clone().apply(&peek, clock).log;
            }
            if let Change::Renew { .. } = settlement.change
                && !self.is("KeepsTheExpiryOfRenewals")
            {
                let renewed = kept.log.expires_at().filter(|_| facts.applied());
                kept.until = renewed.map_or(kept.until, Timestamp::as_micros);
            }
            facts
        })
    }

    fn settle_copy(&self, id: &Id, settlement: &Settlement<'_>) -> SettlementFacts {
        self.with(id, |kept, clock| kept.log.clone().settle(settlement, clock))
    }

    fn reset_step(&self, log: LogKey<'_>) -> bool {
        let found = self.with(&self.id(log), |kept, _| !take(kept).log.is_empty());
        if self.is("ResetsAllKeys") {
            self.shared.logs.lock().unwrap().clear();
        }
        found
    }

    fn remove(&self, log: LogKey<'_>, entry: Entry) {
        let receipt = Receipt::new(entry.id, entry.at, Window::MAX);
        _ = self.settle_step(Settlement::new(log, &ALL, receipt, 0).at(entry.at));
    }

    /// Makes the first of two transactions in which a store appends.
    fn half(&self, mut op: Op<'_>, before: &Kept) {
        let outcome = |op: &Op<'_>| before.log.clone().apply(op, time(clock())).outcome;
        match self.flaw {
            "LeavesAnEntryWithoutItsId" => {
                if op.id.is_some() && !matches!(outcome(&op), Outcome::Repeated { .. }) {
                    op.id = None;
                    _ = self.apply_step(op);
                }
            }
            "LeavesALogWithoutItsOldId" => {
                let mut peek = op;
                (peek.mode, peek.policy, peek.limiter_policy) = (Mode::Peek, &ALL, None);
                if let Outcome::Appended(_) = outcome(&op)
                    && let Outcome::Repeated { entry, .. } = outcome(&peek)
                {
                    self.remove(op.log, entry);
                }
            }
            "LeavesAMergeWithoutItsAppend" => {
                let facts = self.apply_step(op).map(|facts| facts.outcome);
                if let Ok(Outcome::Appended(entry)) = facts {
                    self.remove(op.log, entry);
                }
            }
            _ => {
                _ = self.apply_step(op);
                if before.until > 0 {
                    self.with(&self.id(op.log), |kept, _| kept.until = before.until);
                }
            }
        }
    }

    /// Makes one call. A store that takes steps holds its lock meanwhile, with a pause before and after the change.
    async fn in_steps<T>(&self, change: impl FnOnce() -> T) -> T {
        if self.phase != Cancel {
            return change();
        }
        if self.is("BlocksWhenContended") && self.shared.lock.try_lock().is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut guard = Some(self.shared.lock.lock().await);
        let mut left = None;
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
    async fn in_halves<T>(&self, id: Id, half: impl FnOnce(&Kept), whole: impl FnOnce() -> T) -> T {
        let _guard = self.shared.lock.lock().await;
        let before = self.copy(&id);
        half(&before);
        wait().await;
        self.with(&id, |kept, _| *kept = before);
        whole()
    }

    pub(crate) async fn sweep(&self) {
        let all = |keeps: &mut dyn FnMut(&Id, &Kept) -> bool| {
            let mut logs = self.shared.logs.lock().unwrap();
            logs.retain(|id, kept| keeps(id, kept));
        };
        let mut early = Vec::new();
        let now = clock();
        all(&mut |id, kept| {
            early.extend((kept.until <= now).then(|| id.clone()));
            true
        });
        if self.is("SweepsInTwoSteps") {
            wait().await;
        }
        all(&mut |id, kept| match self.flaw {
            "SweepsAllNames" => !early.iter().any(|other| other.1 == id.1),
            "SweepsInTwoSteps" => !early.contains(id),
            _ => kept.until > clock(),
        });
    }
}

#[async_trait]
impl WindowStore for Flawed {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let id = self.id(op.log);
        let whole = || self.apply_step(op);
        let now = || time(clock());
        match self.flaw {
            "ReadsTheClockTwice" if op.id.is_none() => {
                let admitted = self.apply_step(op.to_peek())?.admitted;
                return Ok(Facts {
                    admitted,
                    ..whole()?
                });
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
                let mut second = op.to_peek();
                if op.appends(admitted) {
                    second = op;
                    second.mode = Mode::Record;
                }
                let facts = self.apply_step(second)?;
                return Ok(Facts { admitted, ..facts });
            }
            // Applies it to a copy, which then replaces the log: other handles do not wait meanwhile.
            "HidesItsLock" => {
                let mut copy = self.copy(&id);
                let facts = copy.log.apply(&op, now());
                copy.until = copy.log.expires_at().map_or(0, Timestamp::as_micros);
                std::thread::yield_now();
                self.with(&id, |kept, _| *kept = copy);
                return Ok(facts);
            }
            "LeavesAnEntryWithoutItsId"
            | "LeavesALogWithoutItsOldId"
            | "LeavesAMergeWithoutItsAppend"
            | "LeavesAnAppendWithoutItsExpiry" => {
                let half = |before: &Kept| self.half(op, before);
                return self.in_halves(id, half, whole).await;
            }
            _ => {}
        }
        self.in_steps(whole).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let id = self.id(settlement.log);
        let whole = || self.settle_step(settlement);
        Ok(match self.flaw {
            "FindsThenSettles" => {
                let changed = self.settle_copy(&id, &settlement).changed;
                std::thread::yield_now();
                SettlementFacts { changed, ..whole() }
            }
            "LeavesHalfASettlement" if settlement.change != Change::Cost(0) => {
                let mut refund = settlement;
                refund.change = Change::Cost(0);
                let half = |_: &Kept| drop(self.settle_step(refund));
                self.in_halves(id, half, whole).await
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
        match (self.flaw, op.checked()) {
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
        let is_joint = self.phase == Several || self.is("LeavesHalfAJointCall");
        Ok(if is_joint {
            self.apply_joint(ops).await
        } else {
            None
        })
    }

    fn clock(&self) -> Option<&dyn Clock> {
        match self.flaw {
            "HasAClockThatStands" => Some(&self.shared.stopped),
            "SleepsInVain" => Some(&self.shared.standing),
            _ => None,
        }
    }

    fn node(&self, _: LogKey<'_>) -> Option<Arc<str>> {
        let number = self.shared.asked.fetch_add(1, Ordering::Relaxed);
        self.is("NamesAnotherNodeEachTime")
            .then(|| number.to_string().into())
    }

    fn identity(&self) -> Option<usize> {
        match self.flaw {
            "SharesItsIdentity" => Some(1),
            _ => Some(Arc::as_ptr(&self.shared).addr()),
        }
    }
}
