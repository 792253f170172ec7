//! What the clones of a fallback share, and what they decide locally.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_core::store::{At, Entry, Facts, LogFacts, LogKey, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Name, NowStore, Policy, Receipt, Timestamp, Window, WindowStore, policy};
use tokio::runtime::Handle;

use super::journal::Journal;
use super::replay::replay;
use super::verdicts::{Issued, Verdicts};
use crate::outages::ids::Ids;
use crate::outages::outage::OutageLog;

pub(super) struct Shared<P, L> {
    pub(super) primary: P,
    pub(super) local: L,
    pub(super) outages: OutageLog,
    ids: Ids,
    /// Nobody appends to logs of this name, so their time is the clock's.
    clock: Name,
    state: Mutex<State>,
    /// Whether there are steps or verdicts, so that a healthy call takes no lock.
    pub(super) in_use: AtomicBool,
    /// By how many µs the primary store's clock was ahead of the local one's at the last answer.
    clock_ahead: AtomicI64,
    local_decisions: AtomicU64,
}

pub(super) struct State {
    pub(super) journal: Journal,
    pub(super) verdicts: Verdicts,
    pub(super) is_replaying: bool,
}

/// A peek under it reads the local store's clock.
static CLOCK: Policy = policy!("1/1us");

/// How much longer an entry with a caller's time is kept, because that time may run behind the local store's clock.
const GIVEN_TIME_GRACE: Duration = Duration::from_secs(60);

impl<P, L> Shared<P, L> {
    pub(super) fn new(primary: P, local: L) -> Self {
        let state = State { journal: Journal::new(100_000), verdicts: Verdicts::new(), is_replaying: false };
        Self {
            primary,
            local,
            outages: OutageLog::default(),
            ids: Ids::new(),
            clock: Name::new("limiter-wrappers/clock"),
            state: Mutex::new(state),
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

    /// Whether the operation may have a verdict of this process.
    pub(super) fn may_repeat(&self, op: &Op<'_>) -> bool {
        op.id.is_some() && self.in_use.load(Ordering::Acquire)
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
        state.verdicts.expire(now);
        self.in_use.store(state.journal.len() > 0 || !state.verdicts.is_empty(), Ordering::Release);
        state
    }

    /// Starts the replay, if there is anything to replay and a runtime to do it.
    pub(super) fn start_replay(self: &Arc<Self>) {
        let mut state = self.state();
        if !state.is_replaying
            && state.journal.len() > 0
            && let Ok(runtime) = Handle::try_current()
        {
            state.is_replaying = true;
            runtime.spawn(replay(Arc::clone(self)));
        }
    }

    /// Returns what the primary store has answered, with this process's verdict if it has one.
    pub(super) fn answered(&self, op: &Op<'_>, facts: Facts) -> Facts {
        if op.at == At::StoreClock {
            self.clock_ahead.store(difference(facts.log.now, self.now()), Ordering::Relaxed);
        }
        if !self.may_repeat(op) {
            return facts;
        }
        match verdict(&mut self.lock(), op) {
            Some((issued, admitted)) => issued.repeated(facts, admitted),
            None => facts,
        }
    }

    /// Applies an operation to the local store, and journals what it appended.
    pub(super) fn decide_locally(self: &Arc<Self>, op: &Op<'_>) -> Facts {
        self.local_decisions.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        if let Some((issued, admitted)) = verdict(&mut state, op) {
            let log = self.local_log(op.log, op.policy, op.at);
            return Facts { admitted, outcome: Outcome::Repeated(issued.entry), log };
        }
        let mut facts = self.local.apply_now(op);
        if let Outcome::Appended(local) = facts.outcome {
            let entry = Entry { id: op.id.unwrap_or_else(|| self.ids.next()), at: local.at };
            let window = op.receipt_window();
            let [counts_until, expires] =
                [op.retention().window, window].map(|window| self.expiry(op.at, local.at, window));
            let issued = Issued { entry, local, primary: None, window, verdict: Some(facts.admitted) };
            let max = state.journal.max;
            let log = state.journal.charge(op, entry, counts_until);
            // Nobody can name any other entry.
            if op.is_kept() || !op.has_resolution() {
                state.verdicts.issue(log, issued, expires, max);
            }
            self.in_use.store(true, Ordering::Release);
            facts.outcome = Outcome::Appended(entry);
            drop(state);
            self.start_replay();
        }
        facts
    }

    /// Settles an entry that the primary store does not hold yet, or whose settlement it has not heard of yet. Otherwise returns the
    /// receipt by which the primary store knows the entry.
    pub(super) fn settle_locally(&self, settlement: &Settlement<'_>) -> ControlFlow<SettlementFacts, Receipt> {
        let receipt = settlement.receipt;
        if !self.in_use.load(Ordering::Acquire) {
            return ControlFlow::Continue(receipt);
        }
        let mut state = self.lock();
        let issued =
            state.verdicts.find(settlement.log, receipt.entry()).filter(|issued| issued.entry.at == receipt.at());
        let (facts, primary) = match issued {
            Some(issued) => {
                if settlement.cost == 0 {
                    issued.verdict = None;
                }
                let mut local = *settlement;
                local.receipt = issued.receipt(issued.local);
                (self.local.settle_now(&local), issued.primary.map(|entry| issued.receipt(entry)))
            }
            None => (
                SettlementFacts {
                    applied: false,
                    log: self.local_log(settlement.log, settlement.policy, settlement.at),
                },
                Some(receipt),
            ),
        };
        let now = self.time(settlement.at, 0);
        for receipt in [Some(receipt), primary].into_iter().flatten() {
            if let Some(applied) = state.journal.settle(settlement.log, receipt, settlement.cost, now) {
                return ControlFlow::Break(SettlementFacts { applied, ..facts });
            }
        }
        primary.map_or(ControlFlow::Break(facts), ControlFlow::Continue)
    }

    /// Journals a settlement of an entry of the primary store, unless the entry has expired.
    pub(super) fn settle_later(self: &Arc<Self>, settlement: &Settlement<'_>) -> SettlementFacts {
        let (receipt, ahead) = (settlement.receipt, self.clock_ahead.load(Ordering::Relaxed));
        let log = self.local_log(settlement.log, settlement.policy, settlement.at);
        let now = self.time(settlement.at, ahead);
        if receipt.has_expired(now) {
            return SettlementFacts { applied: false, log };
        }
        let expires = self.expiry(settlement.at, shifted(receipt.at(), ahead.saturating_neg()), receipt.window());
        let mut state = self.lock();
        // Another call may have journaled one for the same entry meanwhile.
        let applied = state.journal.settle(settlement.log, receipt, settlement.cost, now).unwrap_or_else(|| {
            state.journal.push_settlement(settlement, expires);
            true
        });
        self.in_use.store(true, Ordering::Release);
        drop(state);
        self.start_replay();
        SettlementFacts { applied, log }
    }

    fn local_log(&self, log: LogKey<'_>, policy: &Policy, at: At) -> LogFacts {
        let mut peek = Op::peek(log.key, policy).with_name(log.name);
        peek.at = at;
        self.local.apply_now(&peek).log
    }

    /// Returns the time of a call by a clock that is this many µs ahead of the local store's.
    fn time(&self, at: At, ahead: i64) -> Timestamp {
        match at {
            At::StoreClock => shifted(self.now(), ahead),
            At::Given(at) => at,
        }
    }

    /// Returns when an entry expires, by the local store's clock.
    fn expiry(&self, source: At, at: Timestamp, window: Window) -> Timestamp {
        match source {
            At::StoreClock => at.saturating_add(window.as_duration()),
            At::Given(_) => self.now().saturating_add(window.as_duration().saturating_add(GIVEN_TIME_GRACE)),
        }
    }
}

/// Returns the entry whose verdict the operation repeats, and the verdict.
fn verdict<'a>(state: &'a mut State, op: &Op<'_>) -> Option<(&'a mut Issued, bool)> {
    let issued = state.verdicts.find(op.log, op.id?)?;
    let counts = match op.at {
        At::StoreClock => true,
        At::Given(at) => issued.window.counts(issued.entry.at, at),
    };
    issued.verdict.filter(|_| counts).map(|admitted| (issued, admitted))
}

/// Returns how many µs `a` is later than `b`.
pub(super) fn difference(a: Timestamp, b: Timestamp) -> i64 {
    // Timestamps are below 2^53.
    a.as_micros() as i64 - b.as_micros() as i64
}

pub(super) fn shifted(at: Timestamp, by: i64) -> Timestamp {
    Timestamp::from_micros_saturating(at.as_micros().saturating_add_signed(by))
}
