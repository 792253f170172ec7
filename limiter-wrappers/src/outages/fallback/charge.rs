//! What this process knows of an entry and its log.

use std::cmp::Ordering;
use std::sync::Arc;

use limiter_core::store::{At, Entry, LogKey};
use limiter_core::{EntryId, Name, Policy, Receipt, Timestamp, Window};

/// The identity of a log, owned. It has no `Debug`, which would print the key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LogId(Arc<(Name, Box<[u8]>)>);

impl LogId {
    pub(super) fn key(&self) -> LogKey<'_> {
        LogKey { name: self.0.0, key: &self.0.1 }
    }
}

impl From<LogKey<'_>> for LogId {
    fn from(log: LogKey<'_>) -> Self {
        Self(Arc::new((log.name, log.key.into())))
    }
}

impl Ord for LogId {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0.0.id(), &self.0.1).cmp(&(other.0.0.id(), &other.0.1))
    }
}

impl PartialOrd for LogId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The policies of an operation.
#[derive(PartialEq)]
pub(super) struct Policies {
    pub(super) own: Policy,
    pub(super) limiter: Option<Policy>,
}

/// The cost of an entry that the primary store holds, or is to hold.
#[derive(Clone)]
pub(super) struct Charge {
    /// As its receipts name it.
    pub(super) entry: Entry,
    /// How long its receipts are valid.
    pub(super) window: Window,
    /// When its receipts end, by the local store's clock.
    pub(super) receipts_end: Timestamp,
    /// Whether its time was given by the caller. Otherwise it is a clock's.
    pub(super) is_given: bool,
    /// The last word on the cost. 0 once it is refunded.
    pub(super) cost: u64,
    /// As the primary store names it, once it is known to hold it.
    pub(super) primary: Option<Entry>,
    /// `None` if the primary store has appended it, and only a settlement is to follow.
    pub(super) local: Option<Local>,
}

/// An entry that the local store has appended.
#[derive(Clone)]
pub(super) struct Local {
    /// As the local store names it.
    pub(super) id: EntryId,
    /// Whether it was admitted, and whether it is refundable. `None` once it is refunded, which frees the caller's id.
    pub(super) verdict: Option<(bool, bool)>,
    /// The cost under which it is recorded in the primary store, once that may hold it.
    pub(super) sent: Option<u64>,
    /// How long it counts.
    pub(super) counts_for: Window,
    pub(super) policies: Arc<Policies>,
}

impl Charge {
    /// Returns the receipt by which a store knows the entry.
    pub(super) const fn receipt(&self, entry: Entry) -> Receipt {
        Receipt::new(entry.id, entry.at, self.window)
    }

    /// Returns whether a call at `at` may name the entry. `now` is by the local store's clock.
    pub(super) fn has_receipts(&self, at: At, now: Timestamp) -> bool {
        match at {
            At::StoreClock => now < self.receipts_end,
            At::Given(at) => self.window.counts(self.entry.at, at),
        }
    }

    /// Returns whether the primary store cannot hold the entry.
    pub(super) fn is_unsent(&self) -> bool {
        self.primary.is_none() && self.local.as_ref().is_some_and(|local| local.sent.is_none())
    }
}
