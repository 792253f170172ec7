//! A store of core's logs, with one flaw.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use limiter_core::store::{
    At, EntryId, Facts, JointFacts, JointOp, Log, LogKey, Mode, Op, Outcome, Settlement,
    SettlementFacts, decide,
};
use limiter_core::{
    BoxFuture, Clock, Decision, Error, Name, Receipt, SharedStore, Timestamp, WindowStore,
};

use super::{Change, Expiry, Flaw, fail, in_mode, wait};

pub(super) type Id = (Name, Vec<u8>);

/// A log, when it expires (0 for never), and what its store remembers about ids.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    pub(super) log: Log,
    pub(super) until: u64,
    pub(super) ids: HashMap<EntryId, Receipt>,
    pub(super) ghosts: HashSet<EntryId>,
}

/// What the handles of a store share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) logs: Mutex<HashMap<Id, Kept>>,
    pub(super) lock: tokio::sync::Mutex<()>,
}

/// A handle.
#[derive(Debug)]
pub(crate) struct Flawed {
    pub(super) flaw: &'static Flaw,
    number: u32,
    pub(super) shared: Arc<Shared>,
    /// What the handle hides from the others.
    pub(super) own: Mutex<HashMap<Id, Kept>>,
    pub(super) denied: Mutex<HashMap<Vec<u8>, Facts>>,
}

/// A clock of real time.
#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::try_from(SystemTime::now()).unwrap()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        Box::pin(futures_timer::Delay::new(duration))
    }
}

fn clock() -> u64 {
    SystemClock.now().as_micros()
}

impl Flawed {
    fn another(&self, number: u32) -> Self {
        if self.is("OpeningClears") && number > 1 {
            self.shared.logs.lock().unwrap().clear();
        }
        let shared = Arc::clone(&self.shared);
        Self {
            flaw: self.flaw,
            number,
            shared,
            own: Mutex::default(),
            denied: Mutex::default(),
        }
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.flaw.2 == name
    }

    /// Returns the name and the key under which the store keeps a log.
    pub(super) fn id(&self, log: LogKey<'_>) -> Id {
        let Change::Log(change) = self.flaw.3 else {
            return (log.name, log.key.to_vec());
        };
        let (name, key) = change(log.name.as_str(), log.key);
        (Name::new(&name), key)
    }

    /// Returns the time of the store's clock.
    pub(super) fn clock_now(&self) -> Timestamp {
        let now = clock();
        let now = if let Change::Clock(change) = self.flaw.3 {
            change(now)
        } else {
            now
        };
        Timestamp::from_micros_saturating(now)
    }

    /// Makes a change to a log. An expired log is forgotten first.
    pub(super) fn with<T>(&self, id: &Id, change: impl FnOnce(&mut Kept) -> T) -> T {
        let logs = &mut *self.shared.logs.lock().unwrap();
        if self.is("ForgetsWhenThereAreMany") && logs.len() > 1_000 {
            logs.clear();
        }
        let kept = logs.entry(id.clone()).or_default();
        if (1..=clock()).contains(&kept.until) {
            *kept = Kept::default();
        }
        let result = change(kept);
        let (until, is_gone) = (kept.until, kept.log.is_empty() && kept.ghosts.is_empty());
        if is_gone {
            logs.remove(id);
        }
        if self.is("ExpiresAllNames") {
            logs.iter_mut()
                .filter(|(other, _)| other.1 == id.1)
                .for_each(|(_, kept)| kept.until = until);
        }
        result
    }

    /// Returns a copy of a log.
    pub(super) fn copy(&self, id: &Id) -> Kept {
        self.with(id, |kept| kept.clone())
    }

    pub(super) fn apply_step(&self, mut op: Op<'_>) -> Result<Facts, Error> {
        let id = self.id(op.log);
        let facts = self.with(&id, |kept| {
            if let Change::Op(change) = self.flaw.3 {
                change(&mut op, self.number);
            }
            if op.id.is_some_and(|id| kept.ghosts.contains(&id)) {
                op = op.to_peek();
            }
            let (before, now) = (kept.until, self.clock_now());
            let mut facts = kept.log.apply(&op, now);
            if let Change::Facts(change) = self.flaw.3 {
                change(&mut facts);
            }
            let appended = matches!(facts.outcome, Outcome::Appended(_));
            let right = if appended {
                kept.log.expires_at().unwrap().as_micros()
            } else {
                before
            };
            let (at, clock) = (facts.log.now.as_micros(), now.as_micros());
            let expiry = Expiry {
                op: &op,
                appended,
                now: at,
                clock,
                before,
                right,
            };
            kept.until = match (self.flaw.3, op.at) {
                (Change::Expiry(until), At::StoreClock) => until(&expiry),
                (Change::GivenExpiry(until), At::Given(_)) if appended => until(&expiry),
                _ => right,
            };
            if let (Outcome::Appended(entry) | Outcome::Repeated(entry), Some(id)) =
                (&mut facts.outcome, op.id)
            {
                kept.ids
                    .insert(id, Receipt::new(entry.id, entry.at, op.retention().window));
                entry.id = if self.is("RefundsByIdAlone") {
                    id
                } else {
                    entry.id
                };
            }
            facts
        });
        if self.is("DeniesByError") && !facts.admitted {
            fail()
        } else {
            Ok(facts)
        }
    }

    pub(super) fn settle_step(
        &self,
        mut settlement: Settlement<'_>,
    ) -> Result<SettlementFacts, Error> {
        if let Change::Settlement(change) = self.flaw.3 {
            change(&mut settlement);
        }
        let mut id = self.id(settlement.log);
        let applies = |id: &Id| {
            let mut copy = self.copy(id).log;
            copy.settle(&settlement, self.clock_now()).applied
        };
        if self.is("SettlesOnAnyKey") {
            let ids: Vec<Id> = self.shared.logs.lock().unwrap().keys().cloned().collect();
            id = ids.into_iter().find(applies).unwrap_or(id);
        }
        if self.is("SettlesUnderTheDefaultName") {
            let default = (Name::new("conformance"), id.1.clone());
            id = if self.copy(&default).log.is_empty() {
                id
            } else {
                default
            };
        }
        let mut facts = self.with(&id, |kept| {
            if let Some(receipt) = kept
                .ids
                .get(&settlement.receipt.entry())
                .filter(|_| self.is("RefundsByIdAlone"))
            {
                settlement.receipt =
                    Receipt::new(receipt.entry(), receipt.at(), settlement.receipt.window());
            }
            // Read after `with` has read it, so the log has not expired.
            kept.log.settle(&settlement, self.clock_now())
        });
        match self.flaw.3 {
            Change::SettlementFacts(change) => change(&mut facts),
            Change::Expiry(until) if self.is("AfterASettlement") => self.with(&id, |kept| {
                let mut op = Op::peek(b"", settlement.policy);
                op.at = settlement.at;
                let (now, clock) = (facts.log.now.as_micros(), facts.log.clock.as_micros());
                let (before, right) = (kept.until, kept.until);
                if op.at == At::StoreClock {
                    kept.until = until(&Expiry {
                        op: &op,
                        appended: false,
                        now,
                        clock,
                        before,
                        right,
                    });
                }
            }),
            _ => {}
        }
        if self.is("SettlesNothingByError") && !facts.applied {
            fail()
        } else {
            Ok(facts)
        }
    }

    pub(super) fn reset_step(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let found = self.with(&self.id(log), |kept| !std::mem::take(kept).log.is_empty());
        match self.flaw.2 {
            "ResetsAllKeys" => self.shared.logs.lock().unwrap().clear(),
            "ResetsNothingByError" if !found => return fail(),
            _ => {}
        }
        Ok(found)
    }

    async fn sweep(&self) {
        let now = clock();
        let has_expired = |kept: &Kept| match kept.until {
            until if self.is("SweepsGivenTimes") => until > now + 30_000_000,
            until => (1..=now).contains(&until),
        };
        let early: HashSet<Id> = {
            let logs = self.shared.logs.lock().unwrap();
            logs.iter()
                .filter(|(_, kept)| has_expired(kept))
                .map(|(id, _)| id.clone())
                .collect()
        };
        match self.flaw.2 {
            "SweepsInTwoSteps" => std::thread::yield_now(),
            "SweepsInTwoPolls" => wait().await,
            _ => {}
        }
        for (id, kept) in self.shared.logs.lock().unwrap().iter_mut() {
            let is_swept = match self.flaw.2 {
                "SweepsInTwoSteps" | "SweepsInTwoPolls" => early.contains(id),
                "SweepsAllNames" => early.iter().any(|other| other.1 == id.1),
                _ => has_expired(kept),
            };
            if is_swept {
                let ids = std::mem::take(kept).ids;
                kept.ghosts
                    .extend(ids.into_keys().filter(|_| self.is("SweepLeavesIds")));
            }
        }
    }
}

/// The flaws of the methods around an operation. Flaws of concurrency are in the module `concurrent`.
#[async_trait]
impl WindowStore for Flawed {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        match self.flaw.2 {
            "ReadsTheClockTwice" if op.id.is_none() => {
                let admitted = self.apply_step(in_mode(op, Mode::Peek))?.admitted;
                return Ok(Facts {
                    admitted,
                    ..self.apply_step(op)?
                });
            }
            "BlocksItsThread" => std::thread::sleep(Duration::from_millis(5)),
            "CountsIn16Bits" => self.with(&self.id(op.log), |kept| {
                if kept.log.len() == 1 << 16 {
                    *kept = Kept::default();
                }
            }),
            _ => {}
        }
        self.apply_slowly(op).await
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.denied
            .lock()
            .unwrap()
            .remove(&settlement.log.to_bytes());
        self.settle_slowly(settlement).await
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.denied.lock().unwrap().remove(&log.to_bytes());
        self.reset_slowly(log).await
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        match (self.flaw.2, op.checked()) {
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
        Ok(if let Change::Together(apply) = self.flaw.3 {
            apply(self, ops)
        } else {
            None
        })
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.is("ForgetsEarlyWithATimer").then_some(&SystemClock)
    }
}

/// A store under test: its handles, a handle that is opened late, and its sweep.
pub(crate) struct StoreUnderTest {
    pub(crate) handles: Vec<SharedStore>,
    pub(crate) late: Box<dyn FnOnce() -> SharedStore + Send>,
    pub(crate) sweep: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl StoreUnderTest {
    pub(crate) fn new(flaw: &'static Flaw) -> Self {
        let (shared, own, denied) = Default::default();
        let store = Arc::new(Flawed {
            flaw,
            number: 0,
            shared,
            own,
            denied,
        });
        let (sweeper, opener) = (Arc::clone(&store), Arc::clone(&store));
        let sweep = move || -> BoxFuture<'static, ()> {
            let sweeper = Arc::clone(&sweeper);
            Box::pin(async move { sweeper.sweep().await })
        };
        let another: SharedStore = Arc::new(store.another(1));
        let late = move || -> SharedStore { Arc::new(opener.another(2)) };
        Self {
            handles: vec![store, another],
            late: Box::new(late),
            sweep: Arc::new(sweep),
        }
    }
}
