//! Sequences of operations as data, their expected answers, and their replay on a store.

pub(super) mod call_result;
pub(super) mod caller;
pub(super) mod case;
pub(super) mod citations;
pub(super) mod planner;
pub(super) mod replay;
pub(super) mod transcript;

use std::sync::Arc;

use limiter_core::store::Mode;
use limiter_core::{Limit, MAX_COST, Name, Policy, Timestamp, Window};

use call_result::CallResult;
use case::CaseId;

/// The calls of a [`Case`](case::Case) on a store, each with its expected answer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The case's policies, followed by one that covers every entry.
    pub(crate) policies: Arc<[Policy]>,
    pub(crate) start: Timestamp,
    pub(crate) calls: Vec<Arc<Planned>>,
}

/// A call and its expected answer.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) call: Call,
    pub(crate) expected: CallResult,
    /// The step of the case that the call belongs to. Calls after the end belong to the last step.
    pub(crate) step: usize,
    /// The calls whose entries the log holds after this call.
    pub(crate) held: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Run {
        mode: Mode,
        log: Log,
        policy: usize,
        /// The limiter's default policy, if there is a limiter.
        limiter_policy: Option<usize>,
        cost: u64,
        id: Option<CaseId>,
        keep: bool,
        at: Timestamp,
    },
    Settle {
        log: Log,
        policy: usize,
        /// The call that returned the receipt.
        receipt: usize,
        cost: u64,
        at: Timestamp,
    },
    Reset {
        log: Log,
    },
}

impl Call {
    pub(crate) fn log(&self) -> Log {
        match *self {
            Self::Run { log, .. } | Self::Settle { log, .. } | Self::Reset { log } => log,
        }
    }

    /// Returns the time that the caller gives.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        match *self {
            Self::Run { at, .. } | Self::Settle { at, .. } => Some(at),
            Self::Reset { .. } => None,
        }
    }

    pub(crate) fn with_time(mut self, time: Timestamp) -> Self {
        if let Self::Run { at, .. } | Self::Settle { at, .. } = &mut self {
            *at = time;
        }
        self
    }
}

/// A log, as the numbers of its limiter's name and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Log {
    pub(crate) name: u8,
    pub(crate) key: u8,
}

impl Log {
    /// Returns the default name. It is the same in every run, because the process never frees a name.
    pub(crate) fn name(self) -> Name {
        match self.name {
            0 => Name::new("conformance"),
            name => Name::new(&format!("conformance:{name}")),
        }
    }
}

/// Returns a policy that covers every entry of a log.
pub(crate) fn everything() -> Policy {
    const MOST: Limit = match Limit::with_window(MAX_COST, Window::MAX) {
        Ok(limit) => limit,
        Err(_) => unreachable!(),
    };
    Policy::from(MOST)
}

impl Plan {
    /// Returns the number of calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns whether there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the logs that the calls use.
    pub(crate) fn logs(&self) -> Vec<Log> {
        let mut logs: Vec<Log> = self.calls.iter().map(|planned| planned.call.log()).collect();
        logs.sort_unstable();
        logs.dedup();
        logs
    }
}
