//! Decisions in a form that all stores share.

use std::time::Duration;

use limiter_core::{Decision, Status, Timestamp, Window};

/// The values of a [`Decision`] on which all stores must agree: all except the store's entry id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the decision's")]
pub struct DecisionValues {
    pub fits: bool,
    pub retry_after: Option<Duration>,
    pub appended: bool,
    /// When the entry was appended, and how long its receipt is valid.
    pub receipt: Option<(Timestamp, Window)>,
    /// The cost of the entry.
    pub cost: Option<u64>,
    /// The usage. In a denial, the binding limit is the one with the longest wait.
    pub status: Status,
}

impl From<&Decision> for DecisionValues {
    fn from(decision: &Decision) -> Self {
        Self {
            fits: decision.fits(),
            retry_after: decision.retry_after(),
            appended: decision.appended(),
            receipt: decision
                .receipt()
                .map(|receipt| (receipt.at(), receipt.window())),
            cost: decision.cost(),
            status: decision.status().clone(),
        }
    }
}
