//! The local store, which limits while the primary store is down.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use limiter_core::SyncStore;
use limiter_core::store::{Entry, Facts, JointOp, Outcome, Settlement, SettlementFacts};

use super::carried::{Carried, Cell};

pub(crate) struct Local {
    pub(super) store: Box<dyn SyncStore>,
    carried: Mutex<Carried>,
    /// The number of carried logs, so that a healthy call takes no lock.
    waiting: AtomicUsize,
}

impl Local {
    pub(crate) fn new(store: impl SyncStore, seed: Option<u64>) -> Self {
        Self {
            store: Box::new(store),
            carried: Mutex::new(Carried::new(seed)),
            waiting: AtomicUsize::new(0),
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

    /// Decides operations as one, or a single one. The lock keeps other calls from coming in between.
    pub(super) fn apply_all(&self, ops: &[JointOp<'_>]) -> Vec<Facts> {
        self.locked(|carried| {
            let all = self.store.apply_all_now(ops);
            for (JointOp { op, .. }, facts) in ops.iter().zip(&all) {
                if let Outcome::Appended(Entry { at, .. }) = facts.outcome {
                    let cell = Cell::new(at, op.at, op.cost);
                    carried.add(op.log, Some(op.retention()), at, cell);
                }
            }
            all
        })
    }

    /// Settles an entry that the local log holds.
    pub(super) fn settle(&self, settlement: &Settlement<'_>) -> Option<SettlementFacts> {
        let peek = settlement.to_record(1).to_peek();
        // Most entries are the primary store's: they take no lock.
        self.store.apply_now(&peek).log.newest?;
        let settled = self.locked(|carried| {
            let facts = self.store.settle_now(settlement);
            if let Some(changed) = facts.changed {
                carried.settle(settlement, changed.cost_before, facts.log.now);
            }
            facts
        });
        settled.applied().then_some(settled)
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
