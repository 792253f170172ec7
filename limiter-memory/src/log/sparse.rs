//! The sparse log, for logs that no ring can hold: with idempotency keys, entries that merge, or gaps that refunds leave in the
//! numbers.

use limiter_core::store::{self, Change, EntryId, Facts, Op, Outcome, Settlement, SettlementFacts};
use limiter_core::{Receipt, Timestamp};

use super::lifetime::Lifetime;
use super::view::{Encoding, View};

/// A log as the core implements it, without regard to its size.
#[derive(Clone)]
pub(crate) struct Sparse {
    pub(crate) log: store::Log,
    pub(crate) lifetime: Lifetime,
}

impl Sparse {
    pub(crate) fn copy_of(log: &View<'_, impl Encoding>, lifetime: Lifetime) -> Self {
        let entries = (0..log.len()).map(|i| (log.at(i), log.cost_from(i) - log.cost_from(i + 1)));
        Self {
            log: store::Log::numbered(u64::from(log.number(0)), entries),
            lifetime,
        }
    }

    pub(crate) fn apply(&mut self, op: &Op<'_>, now: Timestamp) -> Facts {
        let facts = self.log.apply(op, now);
        if let Outcome::Appended(_) = facts.outcome {
            self.lifetime = Lifetime::after_append(op);
        }
        facts
    }

    pub(crate) fn settle(
        &mut self,
        settlement: &Settlement<'_>,
        now: Timestamp,
    ) -> SettlementFacts {
        let mut facts = self.log.settle(settlement, now);
        if !facts.applied() {
            // A receipt of the log when it was a ring has the number modulo 2^32.
            let (mut settlement, receipt) = (*settlement, settlement.receipt);
            let entry = EntryId::from_u128(receipt.entry().as_u128() | 1 << 32);
            settlement.receipt = Receipt::new(entry, receipt.at(), receipt.window());
            facts = self.log.settle(&settlement, now);
        }
        if let (Change::Renew { .. }, Some(changed)) = (settlement.change, facts.changed) {
            let record = settlement.to_record(changed.cost_before);
            self.lifetime = Lifetime::after_append(&record);
        }
        facts
    }
}
