//! A store of core's logs with one flaw, of a kind that no mutation of a log makes: keys, clocks, expiry, handles, concurrency and
//! cancellation. `scripts/mutants` checks that the suite finds wrong logs.

mod joint;

use std::collections::{HashMap, HashSet};
use std::mem::{ManuallyDrop, take};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use Phase::{Cancel, Cases, Contention, Forgetting, Handles, LongLog, Several, StoreClock};
use Sentence::*;
use async_trait::async_trait;
use limiter_core::WindowStore;
use limiter_core::store::*;
use limiter_core::{
    BoxFuture, Clock, Decision, Error, ErrorKind, Name, Receipt, Timestamp, Window,
};
use limiter_testkit::conformance::{Phase, Sentence};

/// A phase that always finds the flaw, a sentence that the failure cites, and the name.
pub(crate) type Flaw = (Phase, Sentence, &'static str);

pub(crate) const FLAWS: &[Flaw] = &[
    (StoreClock, T2, "ReadsTheClockTwice"),
    (StoreClock, T3, "WaitsFromNewest"),
    (StoreClock, T4, "IsAhead"),
    (Forgetting, T4, "SleepsHalf"),
    (Cancel, T5, "BlocksItsThread"),
    (Cancel, T5, "BlocksWhenContended"),
    (Cases, L1, "JoinsNamesAndKeys"),
    (Cases, L3, "IgnoresWeights"),
    (Cases, S4, "RefundsWhatHasLeft"),
    (Cases, E1, "DeniesByError"),
    (Cases, E2, "DecidesAtOnceWithoutChecks"),
    (Contention, L12, "HidesItsLock"),
    (Handles, L12, "HidesItsLogs"),
    (Handles, L12, "OpeningClears"),
    (LongLog, L14, "CountsIn16Bits"),
    (Several, A2, "SharesItsIdentity"),
    (Several, A1, "ChangesALogAndCannot"),
    (Several, A1, "CannotWhileOthersDo"),
    (Several, A2, "ChangesOneAfterTheOther"),
    (Several, A2, "JoinsUnderTheFirstName"),
    (Several, F1, "KeepsTheExpiryOfJointAppends"),
    (Several, E3, "CannotBeReached"),
    (Forgetting, F1, "AMillisecondEarly"),
    (Forgetting, F1, "SweepsInTwoSteps"),
    (Forgetting, L1, "SweepsAllNames"),
    (Forgetting, F2, "GivenTimesAsItsOwn"),
    (Forgetting, F1, "KeepsTheExpiryOfRenewals"),
    (Cancel, C1, "LeavesHalfASettlement"),
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

type Id = (Name, Vec<u8>);

/// A log, and when it expires.
#[derive(Clone, Debug, Default)]
struct Kept {
    log: Log,
    until: u64,
}

/// The system's clock, which wakes sleepers early.
#[derive(Debug)]
struct Hasty;

impl Clock for Hasty {
    fn now(&self) -> Timestamp {
        time(clock())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(duration / 2))
    }
}

/// What the handles of a store share.
#[derive(Debug, Default)]
struct Shared {
    logs: Mutex<HashMap<Id, Kept>>,
    /// Stores that take steps hold it meanwhile. Its waiters queue: on a busy machine, spinning would take too long.
    lock: tokio::sync::Mutex<()>,
    /// The logs that cannot be read.
    damaged: Mutex<HashSet<Id>>,
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
        let key = log.key;
        match self.flaw {
            "JoinsNamesAndKeys" => {
                let joined = [log.name.as_str().as_bytes(), b":", key].concat();
                (Name::new("all"), joined)
            }
            "HidesItsLogs" => (log.name, [key, &[self.number]].concat()),
            _ => (log.name, key.into()),
        }
    }

    /// Makes a log unreadable.
    pub(crate) fn damage(&self, log: LogKey<'_>) {
        self.shared.damaged.lock().unwrap().insert(self.id(log));
    }

    /// Fails if the log is unreadable.
    fn check(&self, log: LogKey<'_>) -> Result<(), Error> {
        if !self.shared.damaged.lock().unwrap().contains(&self.id(log)) {
            return Ok(());
        }
        let kind = match self.flaw {
            "CannotBeReached" => ErrorKind::Unavailable,
            _ => ErrorKind::Corrupt,
        };
        Err(Error::new(kind, "3 bytes, expected 16, or more").with_log(log))
    }

    /// Makes a change to a log at the time of the store's clock. An expired log is forgotten first.
    fn with<T>(&self, id: &Id, change: impl FnOnce(&mut Kept, Timestamp) -> T) -> T {
        let logs = &mut *self.shared.logs.lock().unwrap();
        let now = clock();
        let kept = logs.entry(id.clone()).or_default();
        if kept.until <= now {
            *kept = Kept::default();
        }
        let stated = match self.flaw {
            "IsAhead" => now + 10_000_000,
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
        self.check(op.log)?;
        if self.is("IgnoresWeights") {
            op.cost = 1;
        }
        let facts = self.with(&self.id(op.log), |kept, clock| {
            let before = kept.until;
            let mut facts = kept.log.apply(&op, clock);
            if self.is("WaitsFromNewest") {
                facts.log.clock = facts.log.now;
            }
            let appended = matches!(facts.outcome, Outcome::Appended(_));
            let right = kept.log.expires_at().filter(|_| appended);
            let right = right.map_or(before, Timestamp::as_micros);
            kept.until = match self.flaw {
                "AMillisecondEarly" if appended => right - 1_000,
                "GivenTimesAsItsOwn" if appended && op.at != At::StoreClock => {
                    facts.log.now.as_micros() + op.retention().window.as_micros()
                }
                _ => right,
            };
            facts
        });
        if self.is("DeniesByError") && !facts.admitted {
            return Err(Error::new(ErrorKind::Unavailable, "denied"));
        }
        Ok(facts)
    }

    fn settle_step(&self, mut settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.check(settlement.log)?;
        if self.is("RefundsWhatHasLeft") {
            let old = settlement.receipt;
            settlement.receipt = Receipt::new(old.entry(), old.at(), Window::MAX);
        }
        Ok(self.with(&self.id(settlement.log), |kept, clock| {
            let facts = kept.log.settle(&settlement, clock);
            let is_renewal = matches!(settlement.change, Change::Renew { .. });
            if is_renewal && facts.applied() && !self.is("KeepsTheExpiryOfRenewals") {
                kept.until = kept.log.expires_at().unwrap_or_default().as_micros();
            }
            facts
        }))
    }

    fn reset_step(&self, log: LogKey<'_>) -> bool {
        let id = self.id(log);
        let was_damaged = self.shared.damaged.lock().unwrap().remove(&id);
        self.with(&id, |kept, _| !take(kept).log.is_empty()) || was_damaged
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
        match self.flaw {
            "NeverReturns" => std::future::pending().await,
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
            // Applies it to a copy, which then replaces the log: other handles do not wait meanwhile.
            "HidesItsLock" => {
                let mut copy = self.copy(&id);
                let facts = copy.log.apply(&op, time(clock()));
                copy.until = copy.log.expires_at().map_or(0, Timestamp::as_micros);
                std::thread::yield_now();
                self.with(&id, |kept, _| *kept = copy);
                return Ok(facts);
            }
            _ => {}
        }
        self.in_steps(whole).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let whole = || self.settle_step(settlement);
        if self.is("LeavesHalfASettlement") && settlement.change != Change::Cost(0) {
            let mut refund = settlement;
            refund.change = Change::Cost(0);
            let half = |_: &Kept| drop(self.settle_step(refund));
            return self.in_halves(self.id(settlement.log), half, whole).await;
        }
        self.in_steps(whole).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        Ok(self.in_steps(|| self.reset_step(log)).await)
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let decided = || self.apply_step(op).map(|facts| decide(&op, facts));
        self.is("DecidesAtOnceWithoutChecks").then(decided)
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        if self.phase == Several || self.is("LeavesHalfAJointCall") {
            return self.apply_joint(ops).await;
        }
        Ok(None)
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.is("SleepsHalf").then_some(&Hasty as &dyn Clock)
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
