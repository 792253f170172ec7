//! What a journal keeps of each change.

use std::sync::Arc;

use limiter_core::store::{At, Entry, LogKey};
use limiter_core::{Name, Policy, Receipt, Window};

/// The identity of a log, owned. It has no `Debug`, which would print the key.
#[derive(Clone, PartialEq, Eq, Hash)]
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

/// The policies of an operation.
#[derive(PartialEq)]
pub(super) struct Policies {
    pub(super) own: Policy,
    pub(super) limiter: Option<Policy>,
}

/// One change, as it is to be sent.
#[derive(Clone)]
pub(super) enum Change {
    Charge(Charge),
    Settle(Settle),
    Reset,
}

/// An entry of the local store.
#[derive(Clone)]
pub(super) struct Charge {
    /// Under which it is recorded, and receipts name it.
    pub(super) entry: Entry,
    /// Whether its time was given by the caller. Otherwise it is the local store's.
    pub(super) is_given: bool,
    /// The cost to send.
    pub(super) cost: u64,
    /// How long the entry counts.
    pub(super) window: Window,
    pub(super) policies: Arc<Policies>,
    /// Whether the primary store may hold it.
    pub(super) is_sent: bool,
    /// The cost to settle once the primary store has answered.
    pub(super) new_cost: Option<u64>,
}

/// A settlement of an entry of the primary store.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) receipt: Receipt,
    pub(super) cost: u64,
    pub(super) at: At,
    pub(super) policies: Arc<Policies>,
}
