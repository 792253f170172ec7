//! The local store, which limits while the primary store is down.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use limiter_core::store::{At, Entry, Facts, JointOp, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Limit, Policy, SyncStore, policy};

use super::carried::{Carried, Cell};

pub(crate) struct Local {
    pub(super) store: Box<dyn SyncStore>,
    carried: Mutex<Carried>,
    /// The number of carried logs, so that a healthy call takes no lock.
    waiting: AtomicUsize,
}

/// Counts everything that a log holds.
static TOTAL: Policy = policy!("4503599627370496/104249d");

impl Local {
    pub(crate) fn new(store: impl SyncStore) -> Self {
        let (carried, waiting) = Default::default();
        Self {
            store: Box::new(store),
            carried,
            waiting,
        }
    }

    /// Returns how many logs wait to be carried over.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Calls `change` with the lock of all local logs.
    pub(super) fn locked<T>(&self, change: impl FnOnce(&mut Carried) -> T) -> T {
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut carried);
        self.waiting.store(carried.len(), Ordering::Release);
        result
    }

    pub(super) fn apply(&self, op: &Op<'_>) -> Facts {
        self.locked(|carried| self.apply_to(carried, op))
    }

    fn apply_to(&self, carried: &mut Carried, op: &Op<'_>) -> Facts {
        let facts = self.store.apply_now(op);
        if let Outcome::Appended(Entry { at, .. }) = facts.outcome {
            let cell = Cell {
                oldest: at,
                newest: at,
                is_given: op.at != At::StoreClock,
                cost: op.cost,
            };
            carried.add(op.log, Some(op.retention()), at, cell);
        }
        facts
    }

    /// Decides operations as one. The lock prevents concurrent changes to the local store. Each reads the clock, so their times
    /// may differ by microseconds.
    pub(super) fn apply_all(&self, ops: &[JointOp<'_>]) -> Vec<Facts> {
        self.locked(|carried| {
            let previews: Vec<_> = ops.iter().map(|joint| self.preview(&joint.op)).collect();
            let denier = JointOp::denier(ops, &previews);
            let decide = |(i, (joint, preview)): (usize, (&JointOp<'_>, Facts))| {
                let is_held = denier.is_some_and(|denier| denier != i) && !joint.keeps_charge;
                let appends =
                    preview.outcome == Outcome::Nothing && joint.op.appends(preview.admitted);
                if appends && !is_held {
                    self.apply_to(carried, &joint.op)
                } else {
                    preview
                }
            };
            ops.iter().zip(previews).enumerate().map(decide).collect()
        })
    }

    /// Returns an operation's facts if it repeats another, otherwise its peek's. Does not append.
    fn preview(&self, op: &Op<'_>) -> Facts {
        let peeked = self.store.apply_now(&op.to_peek());
        let now = peeked.log.now;
        let (Some(id), Some(window), Some(newest)) =
            (op.id, op.receipt_window(), peeked.log.newest)
        else {
            return peeked;
        };
        let (true, Ok(limit)) = (window.counts(newest, now), Limit::with_window(1, window)) else {
            return peeked;
        };
        // An entry counts in this window, so another does not fit. This one repeats, or is denied.
        let one = limit.into();
        let find = Op::acquire(op.log.key, &one)
            .with_name(op.log.name)
            .with_id(id)
            .at(now);
        match self.store.apply_now(&find) {
            found @ Facts {
                outcome: Outcome::Repeated(_),
                ..
            } => Facts {
                log: peeked.log,
                ..found
            },
            _ => peeked,
        }
    }

    /// Settles an entry that the local log holds.
    pub(super) fn settle(&self, settlement: &Settlement<'_>) -> Option<SettlementFacts> {
        let mut peek = Op::peek(settlement.log.key, &TOTAL).with_name(settlement.log.name);
        peek.at = settlement.at;
        let peek = || self.store.apply_now(&peek).log;
        let total = || peek().usage.first().map_or(0, |usage| usage.used);
        // Most entries are the primary store's: they take no lock.
        peek().newest?;
        let settled = self.locked(|carried| {
            let before = total();
            let facts = self.store.settle_now(settlement);
            if facts.applied {
                carried.settle(settlement, before, total(), facts.log.now);
            }
            facts
        });
        settled.applied.then_some(settled)
    }
}

impl fmt::Debug for Local {
    /// Prints no keys, and takes no lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
