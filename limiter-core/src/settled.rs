//! The results of settlements.

use crate::decision::Decision;
use crate::status::{Status, Verdict};
use crate::store::facts::{Changed, SettlementFacts};
use crate::store::settlement::{Receipt, Settlement};

/// The result of a settlement, a refund or a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a settlement has no effect if its entry has expired: see `applied`"]
pub struct Settled {
    /// The receipt of the entry, if it took effect.
    receipt: Option<Receipt>,
    cost_before: Option<u64>,
    recorded: bool,
    status: Status,
}

impl Settled {
    /// Derives the result of a settlement from a store's facts, as [`decide`](crate::store::decide) derives a decision.
    ///
    /// Pure. The result is unspecified if `facts` do not belong to `settlement`; [`SettlementFacts::verify`] checks that.
    pub fn new(settlement: &Settlement<'_>, facts: SettlementFacts) -> Self {
        let window = settlement.receipt.window();
        let receipt = |Changed { entry, .. }| Receipt::new(entry.id, entry.at, window);
        Self {
            receipt: facts.changed.map(receipt),
            cost_before: facts.changed.map(|changed| changed.cost_before),
            recorded: false,
            status: Status::new(settlement.policy, facts.log, Verdict::default()),
        }
    }

    /// Returns the result of a settlement that came too late, after the cost was recorded.
    pub(crate) fn recorded_as(record: Decision) -> Self {
        Self {
            receipt: None,
            cost_before: None,
            recorded: true,
            status: record.into_status(),
        }
    }

    /// Returns `true` if it took effect. Otherwise the log no longer held the entry, and did not change.
    #[must_use]
    pub const fn applied(&self) -> bool {
        self.receipt.is_some()
    }

    /// Returns the entry's receipt afterwards: of a renewal a new one, which replaces the old one. `None` unless it
    /// [took effect](Self::applied). After a refund, it names no entry.
    #[must_use]
    pub const fn receipt(&self) -> Option<Receipt> {
        self.receipt
    }

    /// Returns the entry's cost before. `None` unless it [took effect](Self::applied). If the store has repeated the call after a lost
    /// reply, it may be the cost afterwards.
    #[must_use]
    pub const fn cost_before(&self) -> Option<u64> {
        self.cost_before
    }

    /// Returns `true` if the cost was recorded as a new entry, because the old one had expired.
    ///
    /// Only [`Permit::settle_or_record`](crate::Permit::settle_or_record) does so.
    #[must_use]
    pub const fn recorded(&self) -> bool {
        self.recorded
    }

    /// Returns the usage after the settlement.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }
}
