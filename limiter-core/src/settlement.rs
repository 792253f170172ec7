//! Changing or removing an entry.

use crate::log_key::LogKey;
use crate::op::{At, EntryId};
use crate::policy::Policy;
use crate::range::MAX_COST;
use crate::time::{Timestamp, Window};

/// Names one entry that an operation appended, to refund it or to settle its cost.
///
/// It is valid for the log that issued it, for as long as the log keeps the entry: the longest window of the policy that the
/// entry was appended under, or of the limiter's default policy if that is longer. After that, or for another log, it names
/// nothing. (One exception: if a caller gave entries of two logs the same id and the same time, a receipt of either may name
/// both.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    entry: EntryId,
    at: Timestamp,
    window: Window,
}

impl Receipt {
    /// Returns the receipt of the entry called `entry`, appended at `at` and kept for `window`.
    #[must_use]
    pub const fn new(entry: EntryId, at: Timestamp, window: Window) -> Self {
        Self { entry, at, window }
    }

    /// Returns the store's id of the entry.
    #[must_use]
    pub const fn entry(&self) -> EntryId {
        self.entry
    }

    /// Returns the time at which the entry counts.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns how long the log keeps the entry.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Whether the entry has left the log by then.
    #[must_use]
    pub const fn has_left(&self, now: Timestamp) -> bool {
        !self.window.counts(self.at, now)
    }
}

/// Replaces the cost of one entry, or removes the entry.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settlement<'a> {
    /// Whose log.
    pub log: LogKey<'a>,
    /// The limits to report afterwards.
    pub policy: &'a Policy,
    /// Which entry.
    pub receipt: Receipt,
    /// The entry's new cost, at most [`MAX_COST`]; 0 removes the entry.
    pub cost: u64,
    /// Who provides the time. Default: the store's clock.
    pub at: At,
}

impl<'a> Settlement<'a> {
    /// Returns a settlement to `cost` at the store's time. A cost above [`MAX_COST`] becomes [`MAX_COST`]; 0 refunds.
    #[must_use]
    pub fn new(log: LogKey<'a>, policy: &'a Policy, receipt: Receipt, cost: u64) -> Self {
        Self { log, policy, receipt, cost: cost.min(MAX_COST), at: At::StoreClock }
    }

    /// Returns the same settlement at this time.
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = At::Given(at);
        self
    }
}
