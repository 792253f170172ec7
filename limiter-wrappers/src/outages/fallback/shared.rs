//! What the clones of a fallback share, and what they decide locally.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::store::{At, Entry, Facts, LogFacts, LogKey, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Name, NowStore, Policy, Receipt, Timestamp, Window, WindowStore, policy};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::charge::{Charge, Local, LogId};
use super::journal::{Change, Journal};
use super::replay::replay;
use crate::outages::outage::OutageLog;

pub(super) struct Shared<P, L> {
    pub(super) primary: P,
    pub(super) local: L,
    pub(super) outages: OutageLog,
    /// The upper half of the ids of entries that have none, so that they name nothing in the primary store.
    id_prefix: u64,
    /// Nobody appends to logs of this name, so their time is the clock's.
    clock: Name,
    state: Mutex<State>,
    /// Whether the journal holds anything, so that a healthy call takes no lock.
    in_use: AtomicBool,
    /// By how many µs the primary store's clock was ahead of the local one's at the last answer.
    clock_ahead: AtomicI64,
    local_decisions: AtomicU64,
}

pub(super) struct State {
    pub(super) journal: Journal,
    replay: Option<JoinHandle<()>>,
}

/// A peek under it reads a store's clock.
pub(super) static CLOCK: Policy = policy!("1/1us");

/// How much longer an entry with a caller's time is kept, because that time may run behind the local store's clock.
const GIVEN_TIME_GRACE: Duration = Duration::from_secs(60);

impl<P, L> Shared<P, L> {
    pub(super) fn new(primary: P, local: L) -> Self {
        Self {
            primary,
            local,
            outages: OutageLog::default(),
            id_prefix: RandomState::new().hash_one("fallback"),
            clock: Name::new("limiter-wrappers/clock"),
            state: Mutex::new(State { journal: Journal::new(100_000), replay: None }),
            in_use: AtomicBool::new(false),
            clock_ahead: AtomicI64::new(0),
            local_decisions: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn local_decisions(&self) -> u64 {
        self.local_decisions.load(Ordering::Relaxed)
    }

    /// Whether the journal may know the operation's id.
    pub(super) fn may_repeat(&self, op: &Op<'_>) -> bool {
        op.id.is_some() && self.in_use.load(Ordering::Acquire)
    }

    /// Ends the replay if nothing waits. Returns whether it did.
    pub(super) fn end_replay(&self) -> bool {
        let mut state = self.state();
        let is_over = state.journal.changes() == 0;
        if is_over {
            state.replay = None;
        }
        is_over
    }
}

impl<P: WindowStore, L: NowStore> Shared<P, L> {
    /// Returns the time of the local store's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.local.apply_now(&Op::peek(b"", &CLOCK).with_name(self.clock)).log.now
    }

    /// Returns the state without what has expired.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let now = self.now();
        let mut state = self.state();
        state.journal.expire(now);
        self.in_use.store(!state.journal.is_empty(), Ordering::Release);
        state
    }

    /// Notes that the journal has changed. Starts the replay, if something waits and there is a runtime to do it.
    pub(super) fn start_replay(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        self.in_use.store(!state.journal.is_empty(), Ordering::Release);
        if state.journal.changes() > 0
            // A runtime that ended has dropped the task.
            && state.replay.as_ref().is_none_or(JoinHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            state.replay = Some(runtime.spawn(replay(Arc::clone(self))));
        }
    }

    /// Returns what the primary store has answered, with this process's verdict if it has one.
    pub(super) fn answered(self: &Arc<Self>, op: &Op<'_>, facts: Facts) -> Facts {
        if op.at == At::StoreClock {
            self.clock_ahead.store(difference(facts.log.now, self.now()), Ordering::Relaxed);
        }
        let Some(id) = op.id.filter(|_| self.may_repeat(op)) else { return facts };
        let primary = match facts.outcome {
            Outcome::Appended(entry) | Outcome::Repeated(entry) => Some(entry),
            Outcome::Nothing => None,
        };
        let (log, mut state) = (LogId::from(op.log), self.lock());
        let journal = &mut state.journal;
        if let Some((number, entry, (admitted, refundable))) = repeated(journal, &log, op) {
            let waits = journal.waits(number);
            if let (Some(charge), Some(_), false) = (journal.charge_mut(number), primary, waits) {
                charge.primary = primary;
            }
            return Facts { admitted, refundable, outcome: Outcome::Repeated(entry), log: facts.log };
        }
        let Some(primary) = primary else { return facts };
        let charges = [journal.find_id(&log, id), journal.find(&log, primary)];
        if !charges.into_iter().flatten().any(|number| journal.refund_waits(number)) {
            return facts;
        }
        // The refund that freed the id would remove this entry, too. So it is recorded again after that.
        let at = match op.at {
            At::StoreClock => journal.now,
            At::Given(at) => at,
        };
        let verdict = (facts.admitted, facts.refundable);
        let entry = self.charge(journal, log, op, Entry { id: primary.id, at }, verdict);
        self.start_replay(state);
        Facts { outcome: Outcome::Repeated(entry), ..facts }
    }

    /// Applies an operation to the local store, and journals what it appended.
    pub(super) fn decide_locally(self: &Arc<Self>, op: &Op<'_>) -> Facts {
        self.local_decisions.fetch_add(1, Ordering::Relaxed);
        let (log, mut state) = (LogId::from(op.log), self.lock());
        if let Some((_, entry, (admitted, refundable))) = repeated(&mut state.journal, &log, op) {
            let log = self.local_log(op.log, op.policy, op.at);
            return Facts { admitted, refundable, outcome: Outcome::Repeated(entry), log };
        }
        let mut facts = self.local.apply_now(op);
        if let Outcome::Appended(local) = facts.outcome {
            let verdict = (facts.admitted, facts.refundable);
            facts.outcome = Outcome::Appended(self.charge(&mut state.journal, log, op, local, verdict));
            self.start_replay(state);
        }
        facts
    }

    /// Journals an entry that `op` has appended. Returns it as its receipt names it.
    fn charge(&self, journal: &mut Journal, log: LogId, op: &Op<'_>, local: Entry, verdict: (bool, bool)) -> Entry {
        let new_id = u128::from(self.id_prefix) << 64 | u128::from(journal.next_number());
        let entry = Entry { id: op.id.unwrap_or(new_id.into()), at: local.at };
        let (is_given, counts_for, window) = (op.at != At::StoreClock, op.retention().window, op.receipt_window());
        let has_receipts = op.is_named() || !op.has_resolution();
        let receipts_end = if has_receipts { self.expiry(is_given, entry.at, window) } else { Timestamp::default() };
        let (verdict, sent, policies) = (Some(verdict), op.id.map(|_| op.cost), journal.policies(op));
        let local = Some(Local { id: local.id, verdict, sent, counts_for, policies });
        let charge = Charge { entry, window, receipts_end, is_given, cost: op.cost, primary: None, local };
        journal.push(log, Change::Charge(charge), self.expiry(is_given, entry.at, counts_for));
        entry
    }

    /// Settles an entry of which the journal knows better than the primary store. Otherwise returns the receipt by which the primary
    /// store knows the entry.
    pub(super) fn settle_locally(&self, settlement: &Settlement<'_>) -> ControlFlow<SettlementFacts, Receipt> {
        let Settlement { log, policy, receipt, cost, at, .. } = *settlement;
        if !self.in_use.load(Ordering::Acquire) {
            return Continue(receipt);
        }
        let mut state = self.lock();
        let journal = &mut state.journal;
        let Some(number) = journal.find(&log.into(), entry_of(receipt)) else { return Continue(receipt) };
        let (now, waits) = (journal.now, journal.waits(number));
        let Some(charge) = journal.charge_mut(number).filter(|charge| charge.has_receipts(at, now)) else {
            return Break(SettlementFacts { applied: false, log: self.local_log(log, policy, at) });
        };
        let log = match &mut charge.local {
            Some(local) => {
                if cost == 0 {
                    local.verdict = None;
                }
                let mut settlement = *settlement;
                settlement.receipt = Receipt::new(local.id, receipt.at(), receipt.window());
                self.local.settle_now(&settlement).log
            }
            None => self.local_log(log, policy, at),
        };
        match charge.primary.filter(|_| !waits) {
            Some(primary) => Continue(charge.receipt(primary)),
            None => Break(SettlementFacts { applied: journal.settle(number, cost), log }),
        }
    }

    /// Journals a settlement that the primary store could not answer, unless the entry has expired.
    pub(super) fn settle_later(self: &Arc<Self>, settlement: &Settlement<'_>) -> SettlementFacts {
        let Settlement { log, policy, receipt, cost, at, .. } = *settlement;
        let facts = |applied| SettlementFacts { applied, log: self.local_log(log, policy, at) };
        let (id, mut state) = (LogId::from(log), self.lock());
        let journal = &mut state.journal;
        if let Some(number) = journal.find(&id, entry_of(receipt)) {
            let applied = journal.settle(number, cost);
            self.start_replay(state);
            return facts(applied);
        }
        let ahead = self.clock_ahead.load(Ordering::Relaxed);
        let (entry, window, is_given) = (entry_of(receipt), receipt.window(), at != At::StoreClock);
        let receipts_end = self.expiry(is_given, shifted(entry.at, ahead.saturating_neg()), window);
        let charge = Charge { entry, window, receipts_end, is_given, cost, primary: Some(entry), local: None };
        let applied = charge.has_receipts(at, journal.now);
        if applied {
            journal.push(id, Change::Charge(charge), receipts_end);
            self.start_replay(state);
        }
        facts(applied)
    }

    fn local_log(&self, log: LogKey<'_>, policy: &Policy, at: At) -> LogFacts {
        let mut peek = Op::peek(log.key, policy).with_name(log.name);
        peek.at = at;
        self.local.apply_now(&peek).log
    }

    /// Returns when an entry expires, by the local store's clock.
    fn expiry(&self, is_given: bool, at: Timestamp, window: Window) -> Timestamp {
        if is_given {
            self.now().saturating_add(window.as_duration().saturating_add(GIVEN_TIME_GRACE))
        } else {
            at.saturating_add(window.as_duration())
        }
    }
}

/// Returns the charge that the operation repeats, its entry and its verdict.
fn repeated(journal: &mut Journal, log: &LogId, op: &Op<'_>) -> Option<(u64, Entry, (bool, bool))> {
    let (number, now) = (journal.find_id(log, op.id?)?, journal.now);
    let charge = journal.charge_mut(number).filter(|charge| charge.has_receipts(op.at, now))?;
    Some((number, charge.entry, charge.local.as_ref()?.verdict?))
}

const fn entry_of(receipt: Receipt) -> Entry {
    Entry { id: receipt.entry(), at: receipt.at() }
}

/// Returns how many µs `a` is later than `b`.
pub(super) fn difference(a: Timestamp, b: Timestamp) -> i64 {
    // Timestamps are below 2^53.
    a.as_micros() as i64 - b.as_micros() as i64
}

pub(super) fn shifted(at: Timestamp, by: i64) -> Timestamp {
    Timestamp::from_micros_saturating(at.as_micros().saturating_add_signed(by))
}
