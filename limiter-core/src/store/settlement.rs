//! Settlements, which change or remove an entry, and the receipts that name it.

use crate::policy::Policy;
use crate::policy::bounds::MAX_COST;
use crate::policy::time::{Timestamp, Window};
use crate::store::log_key::LogKey;
use crate::store::op::{At, EntryId, Op};

/// A handle to one entry of a log, for settling or refunding it. [`Decision::receipt`](crate::Decision::receipt) lists which entries
/// have one, and for how long.
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
    pub const fn entry(&self) -> EntryId {
        self.entry
    }

    /// Returns the entry's timestamp.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns how long the receipt is valid.
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Returns `true` if the receipt has expired at `now`.
    pub const fn has_expired(&self, now: Timestamp) -> bool {
        !self.window.counts(self.at, now)
    }
}

/// A request to change one entry: to replace its cost, to remove it, or to renew it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settlement<'a> {
    /// The log that holds the entry.
    pub log: LogKey<'a>,
    /// The policy whose usage is reported. A renewal appends with it.
    pub policy: &'a Policy,
    /// The default policy of the limiter. Only a renewal needs it. `None` if it is `policy`.
    pub limiter_policy: Option<&'a Policy>,
    /// The receipt of the entry.
    pub receipt: Receipt,
    /// The change of the entry.
    pub change: Change,
    /// The source of the settlement's time. Default: the store's clock.
    pub at: At,
}

/// The change that a [`Settlement`] makes to its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Replaces the cost with this one, 0 to [`MAX_COST`]. 0 removes the entry.
    Cost(u64),
    /// Moves the entry to the settlement's time.
    Renew {
        /// The id of the call that appended the receipt's entry. With it, a renewal may be repeated while the receipt is valid: it also
        /// finds the entry where an earlier attempt has moved it.
        id: Option<EntryId>,
    },
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
            limiter_policy: None,
            receipt,
            change: Change::Cost(cost.min(MAX_COST)),
            at: At::StoreClock,
        }
    }

    /// Returns a renewal of the entry, at the store's time.
    #[must_use]
    pub fn renewal(log: LogKey<'a>, policy: &'a Policy, receipt: Receipt) -> Self {
        Self {
            change: Change::Renew { id: None },
            ..Self::new(log, policy, receipt, 0)
        }
    }

    /// Returns the record by which a renewal appends its entry, of this cost, again.
    #[must_use]
    pub fn to_record(&self, cost: u64) -> Op<'a> {
        let mut op = Op::record(self.log.key, self.policy).with_cost(cost);
        (op.log, op.limiter_policy, op.at) = (self.log, self.limiter_policy, self.at);
        op
    }

    /// Sets a caller-supplied time. Default: the store's clock.
    #[must_use]
    pub fn at(mut self, at: Timestamp) -> Self {
        self.at = At::Given(at);
        self
    }
}
