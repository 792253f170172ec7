//! Settlements, which change or remove an entry, and the receipts that name it.

use crate::policy::Policy;
use crate::policy::bounds::MAX_COST;
use crate::policy::time::{Timestamp, Window};
use crate::store::log_key::LogKey;
use crate::store::op::{At, EntryId};

/// A handle to one entry of a log, for settling or refunding it.
///
/// An entry has a receipt only if it fitted every limit of the operation's policy and of the limiter's default policy when it was
/// appended. Any other entry may have displaced older ones. Without it, a window could admit more than its maximum.
///
/// A receipt is valid for the longest window of the exact limits of the operation's policy and of the limiter's default policy. Later it
/// matches no entry. If every limit has a [resolution](crate::Limit::resolution), there are no receipts.
///
/// A receipt matches no entry of another log, with one exception: if a caller gave entries of two logs the same id and the same time, a receipt of either may match both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    entry: EntryId,
    at: Timestamp,
    window: Window,
}

impl Receipt {
    /// Returns the receipt of the entry with the id `entry`, appended at `at`. It is valid for `window`.
    #[must_use]
    pub const fn new(entry: EntryId, at: Timestamp, window: Window) -> Self {
        Self { entry, at, window }
    }

    /// Returns the store's id of the entry.
    #[must_use]
    pub const fn entry(&self) -> EntryId {
        self.entry
    }

    /// Returns the entry's timestamp.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns how long the receipt is valid.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Returns `true` if the receipt has expired at `now`.
    #[must_use]
    pub const fn has_expired(&self, now: Timestamp) -> bool {
        !self.window.counts(self.at, now)
    }
}

/// A request to replace the cost of one entry, or to remove the entry.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settlement<'a> {
    /// The log that holds the entry.
    pub log: LogKey<'a>,
    /// The policy whose usage is reported.
    pub policy: &'a Policy,
    /// The receipt of the entry.
    pub receipt: Receipt,
    /// The entry's new cost, 0 to [`MAX_COST`]. 0 removes the entry.
    pub cost: u64,
    /// The source of the settlement's time. Default: the store's clock.
    pub at: At,
}

impl<'a> Settlement<'a> {
    /// Returns a settlement that changes the entry's cost to `cost`, at the store's time.
    ///
    /// A cost above [`MAX_COST`] becomes [`MAX_COST`]. A cost of 0 removes the entry.
    #[must_use]
    pub fn new(log: LogKey<'a>, policy: &'a Policy, receipt: Receipt, cost: u64) -> Self {
        Self {
            log,
            policy,
            receipt,
            cost: cost.min(MAX_COST),
            at: At::StoreClock,
        }
    }

    /// Sets a caller-supplied time. Default: the store's clock.
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = At::Given(at);
        self
    }
}
