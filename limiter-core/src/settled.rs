//! The results of settlements.

use crate::decision::Decision;
use crate::status::{Status, Verdict};
use crate::store::facts::SettlementFacts;
use crate::store::settlement::Settlement;

/// The result of a settlement or a refund.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a settlement has no effect if its entry has expired: see `applied`"]
pub struct Settled {
    applied: bool,
    recorded: bool,
    status: Status,
}

impl Settled {
    /// Derives the result of a settlement from a store's facts, as [`decide`](crate::store::decide) derives a decision.
    ///
    /// Pure. The result is unspecified if `facts` do not belong to `settlement`; [`SettlementFacts::verify`] checks that.
    pub fn new(settlement: &Settlement<'_>, facts: SettlementFacts) -> Self {
        Self {
            applied: facts.applied,
            recorded: false,
            status: Status::new(settlement.policy, facts.log, Verdict::default()),
        }
    }

    /// Returns the result of a settlement that came too late, after the cost was recorded.
    pub(crate) fn recorded_as(record: Decision) -> Self {
        Self {
            applied: false,
            recorded: true,
            status: record.into_status(),
        }
    }

    /// Returns `true` if it took effect. Otherwise the log no longer held the entry, and did not change.
    #[must_use]
    pub const fn applied(&self) -> bool {
        self.applied
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
