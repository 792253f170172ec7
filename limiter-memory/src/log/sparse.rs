//! The sparse log, for entries that no ring can hold. Entries can carry idempotency keys, and settlements and refunds leave gaps
//! in the numbers.

use limiter_core::store::{self, Facts, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{EntryId, Receipt, Timestamp, internal};

use super::encoding::Encoding;
use super::retention::Retention;
use super::view::View;

/// A log as the core implements it, without regard to its size.
pub(crate) struct Sparse {
    log: store::Log,
    pub(crate) newest: Option<Timestamp>,
    /// The largest usage of a limit at the last operation.
    pub(crate) used: u64,
    retention: Retention,
}

impl Sparse {
    pub(crate) fn copy_of(log: &View<'_, impl Encoding>, retention: Retention) -> Self {
        let entries = (0..log.len()).map(|i| (log.at(i), log.cost_from(i) - log.cost_from(i + 1)));
        Self {
            log: internal::numbered_log(u64::from(log.number(0)), entries),
            newest: log.newest(),
            used: 0,
            retention,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn retention(&self) -> Retention {
        self.retention
    }

    pub(crate) fn apply(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let facts = self.log.apply(op, now);
        if let Outcome::Appended(_) = facts.outcome {
            self.retention = Retention::after_append(op);
        }
        self.newest = facts.log.newest;
        self.used = facts.log.usage.iter().map(|usage| usage.used).max().unwrap_or_default();
        facts
    }

    pub(crate) fn settle(&mut self, settlement: &Settlement<'_>, now: Timestamp) -> SettlementFacts {
        let mut facts = self.log.settle(settlement, now);
        if !facts.applied {
            // A receipt of the log when it was a ring has the number modulo 2^32.
            let (mut settlement, receipt) = (*settlement, settlement.receipt);
            let entry = EntryId::from_u128(receipt.entry().as_u128() | 1 << 32);
            settlement.receipt = Receipt::new(entry, receipt.at(), receipt.window());
            facts = self.log.settle(&settlement, now);
        }
        self.newest = facts.log.newest;
        facts
    }
}
