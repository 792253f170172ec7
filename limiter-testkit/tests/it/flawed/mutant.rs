//! The reference store with one flaw.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use limiter_core::store::{
    At, Entry, Facts, JointFacts, JointOp, LogFacts, LogKey, Mode, Op, Outcome, Settlement,
    SettlementFacts, decide,
};
use limiter_core::{
    BoxFuture, Clock, Decision, Error, ErrorKind, MAX_COST, Name, Policy, Receipt, SyncStore,
    Timestamp, Window, WindowStore, policy,
};
use limiter_testkit::conformance::{Phase, Sentence};
use limiter_testkit::reference::merging::Rules;
use limiter_testkit::reference::{cap, log_facts};
use limiter_testkit::{ReferenceEntry, ReferenceStore};
use tokio::sync::MutexGuard;

use super::call::{FlawedCall, Memory, time};
use super::joint::Joint;
use super::{Change, Flaw, Verb, wait};

type Logs = HashMap<(Name, Vec<u8>), Memory>;

/// What the handles of a store share.
#[derive(Debug)]
struct Shared {
    store: ReferenceStore,
    lock: tokio::sync::Mutex<()>,
    logs: Mutex<(Logs, Memory)>,
}

/// What a handle hides from the others.
#[derive(Debug, Default)]
struct Private {
    logs: HashMap<Vec<u8>, Vec<ReferenceEntry>>,
    denied: HashMap<Vec<u8>, Facts>,
}

/// A handle of the reference store with one flaw.
#[derive(Debug)]
pub(crate) struct Mutant {
    flaw: &'static Flaw,
    number: u32,
    shared: Arc<Shared>,
    private: Mutex<Private>,
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
    Timestamp::try_from(SystemTime::now()).unwrap().as_micros()
}

impl Mutant {
    pub(crate) fn new(flaw: &'static Flaw) -> Self {
        let mut rules = Rules::CONTRACT;
        match flaw.3 {
            Change::Inputs(inputs) => rules.inputs = inputs,
            Change::IsDue(is_due) => rules.is_due = is_due,
            Change::Joins(joins) => rules.joins = joins,
            Change::Merged(merged) => rules.merged = merged,
            _ => {}
        }
        let (store, lock, logs) = (
            ReferenceStore::with_rules(rules),
            Default::default(),
            Mutex::default(),
        );
        Self {
            flaw,
            number: 0,
            shared: Arc::new(Shared { store, lock, logs }),
            private: Mutex::default(),
        }
    }

    /// Opens another handle of the same store.
    pub(crate) fn another(&self, number: u32) -> Self {
        if self.is("OpeningClears") && number > 1 {
            self.forget(&mut self.shared.logs.lock().unwrap().0, |_, _| true);
        }
        Self {
            flaw: self.flaw,
            number,
            shared: Arc::clone(&self.shared),
            private: Mutex::default(),
        }
    }

    fn is(&self, name: &str) -> bool {
        self.flaw.2 == name
    }

    /// Changes a call: before it, the entries afterwards, or the facts.
    fn change(&self, verb: Verb, step: u8, call: &mut FlawedCall<'_>) {
        match (verb, step, &self.flaw.3) {
            (Verb::Apply | Verb::Settle, 0, Change::Clock(clock)) if call.on_clock() => {
                call.shift(clock);
            }
            (Verb::Apply, 0, Change::Before(change))
            | (Verb::Apply, 1, Change::Entries(change))
            | (Verb::Apply, 2, Change::Facts(change))
            | (Verb::Settle, 0, Change::Settles(change))
            | (Verb::Settle, 1, Change::Settled(change))
            | (Verb::Settle, 2, Change::SettledFacts(change))
            | (Verb::Reset, 1, Change::ResetEntries(change))
            | (Verb::Reset, 2, Change::ResetFacts(change)) => change(call),
            _ => {}
        }
    }

    fn policy(&self, policy: &Policy) -> Policy {
        if let Change::Limits(change) = self.flaw.3 {
            change(policy)
        } else {
            policy.clone()
        }
    }

    fn log(&self, log: LogKey<'_>) -> (Name, Vec<u8>) {
        let Change::Log(change) = self.flaw.3 else {
            return (log.name, log.key.to_vec());
        };
        let (name, key) = change(log.name.as_str(), log.key);
        (Name::new(&name), key)
    }

    /// Forgets logs.
    fn forget(&self, logs: &mut Logs, which: impl Fn(&(Name, Vec<u8>), &Memory) -> bool) {
        for ((name, key), memory) in logs.iter_mut() {
            if which(&(*name, key.clone()), memory) {
                let log = LogKey::new(*name, key);
                let ghosts = if self.is("SweepLeavesIds") {
                    self.shared.store.entries(log)
                } else {
                    Vec::new()
                };
                *memory = Memory {
                    ghosts,
                    ..Memory::default()
                };
                self.shared.store.set_entries(log, Vec::new());
            }
        }
    }

    /// Makes a call between the changes at three stages. Returns the facts, or the error that the flaw returns instead.
    fn call(
        &self,
        verb: Verb,
        op: Op<'_>,
        receipt: Option<(Receipt, u64)>,
        make: impl FnOnce(&mut FlawedCall<'_>),
    ) -> Result<Facts, Error> {
        let mut guard = self.shared.logs.lock().unwrap();
        let (logs, shared) = &mut *guard;
        if self.is("ForgetsWhenThereAreMany") && logs.len() > 1_000 {
            self.forget(logs, |_, _| true);
            logs.clear();
        }
        let now = clock();
        let own = self.log(op.log);
        self.forget(logs, |log, memory| {
            *log == own && (1..=now).contains(&memory.until)
        });
        let policies =
            [op.policy, op.limiter_policy.unwrap_or(op.policy)].map(|policy| self.policy(policy));
        let mut op = op;
        (op.log, op.policy) = (LogKey::new(own.0, &own.1), &policies[0]);
        op.limiter_policy = op.limiter_policy.map(|_| &policies[1]);
        let store = &self.shared.store;
        let log = store.entries(op.log);
        let unknown = Receipt::new(0.into(), Timestamp::EPOCH, Window::MIN);
        let (receipt, cost) = receipt.unwrap_or((unknown, 0));
        let facts = Facts {
            admitted: false,
            ..store.apply_now(&op.to_peek())
        };
        let memory = logs.entry(own.clone()).or_default();
        let (before, number) = (log.clone(), u128::from(self.number));
        let mut call = FlawedCall {
            store,
            op,
            receipt,
            cost,
            clock: now,
            number,
            before,
            log,
            facts,
            fails: false,
            memory,
            shared,
        };
        self.change(verb, 0, &mut call);
        store.set_entries(call.op.log, call.log.clone());
        make(&mut call);
        call.log = store.entries(call.op.log);
        let log = call.log.clone();
        self.change(verb, 1, &mut call);
        if log != call.log {
            store.set_entries(call.op.log, call.log.clone());
            let LogFacts { now, clock, .. } = call.facts.log;
            call.facts.log = log_facts(&call.log, call.op.policy, call.op.cost, [now, clock]);
        }
        self.change(verb, 2, &mut call);
        if call.fails {
            return Err(Error::new(ErrorKind::Unavailable, "a flaw"));
        }
        let (facts, until, is_empty) = (
            call.facts,
            call.memory.until,
            call.log.is_empty() && call.memory.ghosts.is_empty(),
        );
        if is_empty && verb == Verb::Reset {
            logs.remove(&own);
        }
        if self.is("ExpiresAllNames") {
            logs.iter_mut()
                .filter(|((_, key), _)| *key == own.1)
                .for_each(|(_, memory)| memory.until = until);
        }
        Ok(facts)
    }

    fn apply_step(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.call(Verb::Apply, op, None, |call| {
            let store = call.store;
            let (own, finds): (&[_], fn(&FlawedCall<'_>, &ReferenceEntry) -> bool) =
                match self.flaw.3 {
                    Change::Finds(finds) => (&call.before, finds),
                    _ => (&[], |call, entry| call.repeats(entry)),
                };
            let mut candidates = own
                .iter()
                .chain(&call.memory.ghosts)
                .chain(&call.shared.ghosts)
                .copied();
            let found = call
                .op
                .id
                .and_then(|_| candidates.find(|entry| finds(call, entry)));
            call.facts = match found {
                Some(ReferenceEntry {
                    name: id,
                    at,
                    admitted,
                    refundable,
                    ..
                }) => {
                    let mut peek = call.op;
                    (peek.mode, peek.id) = (Mode::Peek, None);
                    let outcome = Outcome::Repeated(Entry { id, at });
                    Facts {
                        admitted,
                        refundable,
                        outcome,
                        ..store.apply_now(&peek)
                    }
                }
                None if matches!(self.flaw.3, Change::Finds(_)) && call.op.id.is_some() => {
                    let mut entries = call.before.clone();
                    entries
                        .iter_mut()
                        .filter(|entry| call.same_id(entry))
                        .for_each(|entry| entry.id = None);
                    store.set_entries(call.op.log, entries);
                    store.apply_now(&call.op)
                }
                None => store.apply_now(&call.op),
            };
            call.keep();
        })
    }

    fn settle_step(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let Settlement {
            log,
            policy,
            receipt,
            cost,
            at,
            ..
        } = settlement;
        let mut op = Op::peek(log.key, policy).with_name(log.name).with_cost(0);
        op.at = at;
        let facts = self.call(Verb::Settle, op, Some((receipt, cost)), |call| {
            let mut settlement =
                Settlement::new(call.op.log, call.op.policy, call.receipt, call.cost);
            settlement.at = call.op.at;
            let facts = call.store.settle_now(&settlement);
            (call.facts.admitted, call.facts.log) = (facts.applied, facts.log);
        })?;
        Ok(SettlementFacts {
            applied: facts.admitted,
            log: facts.log,
        })
    }

    fn reset_step(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let policy = policy!("1/1us");
        let op = Op::peek(log.key, &policy).with_name(log.name);
        let facts = self.call(Verb::Reset, op, None, |call| {
            call.facts.admitted = call.store.reset_now(call.op.log);
            *call.memory = Memory::default();
        })?;
        if self.is("ResetsAllKeys") {
            self.forget(&mut self.shared.logs.lock().unwrap().0, |_, _| true);
        }
        Ok(facts.admitted)
    }

    pub(crate) async fn sweep(&self) {
        let now = clock();
        let has_expired = |until: u64| match until {
            until if self.is("SweepsGivenTimes") => until > now + 30_000_000,
            until => (1..=now).contains(&until),
        };
        let select = || -> Vec<(Name, Vec<u8>)> {
            let logs = self.shared.logs.lock().unwrap();
            logs.0
                .iter()
                .filter(|(_, memory)| has_expired(memory.until))
                .map(|(log, _)| log.clone())
                .collect()
        };
        let early = select();
        match self.flaw.2 {
            "SweepsInTwoSteps" => std::thread::yield_now(),
            "SweepsInTwoPolls" => wait().await,
            _ => {}
        }
        let is_swept = |log: &(Name, Vec<u8>), memory: &Memory| match self.flaw.2 {
            "SweepsInTwoSteps" | "SweepsInTwoPolls" => early.contains(log),
            "SweepsAllNames" => early.iter().any(|other| other.1 == log.1),
            _ => has_expired(memory.until),
        };
        self.forget(&mut self.shared.logs.lock().unwrap().0, is_swept);
    }

    /// Callers wait in a queue: on a busy machine, spinning would take longer than a call may.
    async fn lock(&self) -> MutexGuard<'_, ()> {
        if self.is("BlocksWhenContended") && self.shared.lock.try_lock().is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.shared.lock.lock().await
    }
}

/// The flaws of concurrency, and those of the methods around an operation.
impl Mutant {
    /// Makes one call. A store that takes steps holds its lock meanwhile, with a pause before and after the change.
    async fn in_steps<T>(&self, log: LogKey<'_>, change: impl FnOnce() -> T) -> T {
        let steps =
            self.is("NoneInSteps") || self.flaw.0 == Phase::Cancel && self.flaw.1 != Sentence::T5;
        if self.is("HidesItsLogs") {
            let mut own = self.private.lock().unwrap();
            if let Some(entries) = own.logs.remove(&log.to_bytes()) {
                self.shared.store.set_entries(log, entries);
            }
            let answer = change();
            own.logs
                .insert(log.to_bytes(), self.shared.store.entries(log));
            return answer;
        }
        if !steps && !self.is("BlocksWhenContended") {
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
        half: impl FnOnce(u64),
        whole: impl FnOnce() -> T,
    ) -> T {
        let _guard = self.lock().await;
        let (entries, until) = (self.shared.store.entries(log), self.until(log, |_| {}));
        half(until);
        wait().await;
        self.shared.store.set_entries(log, entries);
        self.until(log, |own| *own = until);
        whole()
    }

    /// Changes when a log is forgotten. Returns when that was before.
    fn until(&self, log: LogKey<'_>, change: impl FnOnce(&mut u64)) -> u64 {
        let mut logs = self.shared.logs.lock().unwrap();
        let memory = logs.0.entry((log.name, log.key.to_vec())).or_default();
        let before = memory.until;
        change(&mut memory.until);
        before
    }

    async fn checks_then_adds(&self, op: Op<'_>) -> Result<Facts, Error> {
        let mut step = op;
        step.mode = Mode::Peek;
        let fits = self.apply_step(step)?.admitted;
        wait().await;
        std::thread::yield_now();
        step.mode = if op.appends(fits) {
            Mode::Record
        } else {
            Mode::Peek
        };
        let facts = self.apply_step(step)?;
        Ok(Facts {
            admitted: fits,
            ..facts
        })
    }

    /// Applies an operation to a copy of the log, which then replaces the log: other handles do not wait meanwhile.
    fn hides_its_lock(&self, op: Op<'_>) -> Facts {
        // The copies choose different names.
        for _ in 0..99 {
            _ = self
                .shared
                .store
                .apply_now(&Op::record(b"names", &policy!("1/1us")));
        }
        let copy = self.shared.store.clone();
        let facts = copy.apply_now(&op);
        std::thread::yield_now();
        self.shared.store.set_entries(op.log, copy.entries(op.log));
        facts
    }

    /// Until the handle notices a change, a denied operation stays denied.
    async fn hides_its_denials(&self, op: Op<'_>) -> Result<Facts, Error> {
        let key = op.log.to_bytes();
        let same = |facts: &&Facts| {
            op.at == At::Given(facts.log.now) && facts.log.usage.len() == op.policy.limits().len()
        };
        let denied = self
            .private
            .lock()
            .unwrap()
            .denied
            .get(&key)
            .filter(same)
            .cloned();
        if let Some(facts) = denied.filter(|_| op.mode == Mode::Acquire && op.id.is_none()) {
            return Ok(facts);
        }
        let facts = self.apply_step(op)?;
        if op.mode == Mode::Acquire
            && !facts.admitted
            && facts.outcome == Outcome::Nothing
            && op.cost == 1
        {
            self.private
                .lock()
                .unwrap()
                .denied
                .insert(key, facts.clone());
        }
        Ok(facts)
    }
}

#[async_trait]
impl WindowStore for Mutant {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let whole = || self.apply_step(op);
        match self.flaw.2 {
            "ReadsTheClockTwice" if op.id.is_none() => {
                let mut peek = op;
                peek.mode = Mode::Peek;
                let admitted = self.apply_step(peek)?.admitted;
                return Ok(Facts {
                    admitted,
                    ..whole()?
                });
            }
            "BlocksItsThread" => std::thread::sleep(Duration::from_millis(5)),
            "ChecksThenAdds" => return self.checks_then_adds(op).await,
            "HidesItsLock" => return Ok(self.hides_its_lock(op)),
            "HidesItsDenials" => return self.hides_its_denials(op).await,
            "LeavesAnEntryWithoutItsId" if op.id.is_some() => {
                let mut without = op;
                without.id = None;
                let is_new = !self
                    .shared
                    .store
                    .entries(op.log)
                    .iter()
                    .any(|entry| entry.id == op.id);
                let half = |_| _ = is_new.then(|| self.apply_step(without));
                return self.in_halves(op.log, half, whole).await;
            }
            "LeavesAnAppendWithoutItsExpiry" => {
                let half = |before| {
                    _ = self.apply_step(op);
                    self.until(op.log, |until| {
                        *until = if before == 0 { *until } else { before }
                    });
                };
                return self.in_halves(op.log, half, whole).await;
            }
            _ => {}
        }
        self.in_steps(op.log, whole).await
    }

    fn try_decide(&self, op: Op<'_>) -> Option<Result<Decision, Error>> {
        let checked = op.checked();
        match (self.flaw.2, checked) {
            ("DecidesAtOnceWithoutChecks", _) => {
                Some(self.apply_step(op).map(|facts| decide(&op, facts)))
            }
            (name, Ok(op)) if name.starts_with("GivesReceiptsFor") => {
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
        let joint = Joint {
            store: &self.shared.store,
            ops,
        };
        Ok(if let Change::Together(apply) = self.flaw.3 {
            apply(&joint)
        } else {
            None
        })
    }

    fn clock(&self) -> Option<&dyn Clock> {
        self.is("ForgetsEarlyWithATimer").then_some(&SystemClock)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.private
            .lock()
            .unwrap()
            .denied
            .remove(&settlement.log.to_bytes());
        let whole = || self.settle_step(settlement);
        let Settlement { log, receipt, .. } = settlement;
        let is_it = |entry: &ReferenceEntry| entry.name == receipt.entry();
        match self.flaw.2 {
            "FindsThenSettles" => {
                // Another call may remove the entry in the meantime.
                let applied = self.shared.store.entries(log).iter().any(is_it);
                std::thread::yield_now();
                Ok(SettlementFacts {
                    applied,
                    ..whole()?
                })
            }
            "CapsAfterAPause" => {
                let facts = whole()?;
                wait().await;
                let mut entries = self.shared.store.entries(log);
                cap(
                    &mut entries,
                    if facts.applied { MAX_COST } else { u64::MAX },
                );
                self.shared.store.set_entries(log, entries);
                Ok(facts)
            }
            "RefundsByIdAlone" | "NamesEntriesByTheirIds" => {
                let entries = self.shared.store.entries(log);
                let mut settlement = settlement;
                if let (Some(entry), "RefundsByIdAlone") =
                    (entries.iter().find(|entry| is_it(entry)), self.flaw.2)
                {
                    settlement.receipt = Receipt::new(entry.name, entry.at, receipt.window());
                }
                let facts = self.settle_step(settlement)?;
                if self.is("NamesEntriesByTheirIds") && settlement.cost == 0 {
                    let others = entries
                        .into_iter()
                        .filter(|entry| !is_it(entry) || entry.at != receipt.at());
                    self.shared.store.set_entries(log, others.collect());
                }
                Ok(facts)
            }
            "SettlesOnAnyKey" => {
                let logs: Vec<_> = self.shared.logs.lock().unwrap().0.keys().cloned().collect();
                let entries =
                    |log: &(Name, Vec<u8>)| self.shared.store.entries(LogKey::new(log.0, &log.1));
                let found = logs.iter().find(|log| entries(log).iter().any(is_it));
                let mut settlement = settlement;
                settlement.log = found.map_or(log, |(name, key)| LogKey::new(*name, key));
                self.settle_step(settlement)
            }
            "SettlesInTwoSteps" => {
                let entries = self.shared.store.entries(log);
                wait().await;
                std::thread::yield_now();
                self.shared.store.set_entries(log, entries);
                whole()
            }
            "LeavesARefundWithoutItsId" if settlement.cost == 0 => {
                let without = |entry| {
                    if is_it(&entry) {
                        ReferenceEntry { id: None, ..entry }
                    } else {
                        entry
                    }
                };
                let entries = self
                    .shared
                    .store
                    .entries(log)
                    .into_iter()
                    .map(without)
                    .collect();
                self.in_halves(log, |_| self.shared.store.set_entries(log, entries), whole)
                    .await
            }
            "LeavesHalfASettlement" if settlement.cost > 0 => {
                let mut refund = settlement;
                refund.cost = 0;
                self.in_halves(log, |_| _ = self.settle_step(refund), whole)
                    .await
            }
            _ => self.in_steps(log, whole).await,
        }
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        self.private.lock().unwrap().denied.remove(&log.to_bytes());
        let whole = || self.reset_step(log);
        if self.is("ResetsInTwoSteps") {
            let found = !self.shared.store.entries(log).is_empty();
            wait().await;
            std::thread::yield_now();
            return whole().map(|_| found);
        }
        if !self.is("LeavesHalfAReset") {
            return self.in_steps(log, whole).await;
        }
        // Leaves one entry.
        let half = |_| {
            _ = self.apply_step(
                Op::record(log.key, &policy!("1/1us"))
                    .with_name(log.name)
                    .at(time(clock())),
            );
        };
        self.in_halves(log, half, whole).await
    }
}
