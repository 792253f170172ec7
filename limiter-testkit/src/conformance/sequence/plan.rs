//! A case with the answers that a store must give.

use limiter_core::store::Mode;
use limiter_core::{Limit, MAX_COST, Name, Policy, Timestamp, Window};

use super::case::CaseId;
use super::reply::Reply;

/// The calls of a [`Case`](super::case::Case) on a store, each with what it must answer.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Those of the case, and at last one that sees every entry.
    pub(crate) policies: Vec<Policy>,
    pub(crate) start: Timestamp,
    pub(crate) calls: Vec<Planned>,
}

/// A call and what it must answer.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) call: Call,
    pub(crate) expected: Reply,
    /// The step of the case that the call belongs to: the last one for the calls after the end.
    pub(crate) step: usize,
    /// The calls whose entries the log holds after this one.
    pub(crate) held: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Run {
        mode: Mode,
        log: Log,
        policy: usize,
        /// The default policy of the limiter, if there is one.
        limiter_policy: Option<usize>,
        cost: u64,
        id: Option<CaseId>,
        at: Timestamp,
    },
    Settle {
        log: Log,
        policy: usize,
        /// The call that got the receipt.
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

    /// Returns the time that the caller gives with it.
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

    /// Whether it only looks.
    pub(crate) fn is_peek(&self) -> bool {
        matches!(self, Self::Run { mode: Mode::Peek, .. })
    }
}

/// A limiter's name and a key, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Log {
    pub(crate) name: u8,
    pub(crate) key: u8,
}

impl Log {
    /// Returns the usual name. It is the same in every run, because the process keeps each name for good.
    pub(crate) fn name(self) -> Name {
        match self.name {
            0 => Name::new("conformance"),
            name => Name::new(&format!("conformance:{name}")),
        }
    }
}

/// A policy that sees every entry that a log holds.
pub(crate) fn everything() -> Policy {
    const MOST: Limit = match Limit::with_window(MAX_COST, Window::MAX) {
        Ok(limit) => limit,
        Err(_) => unreachable!(),
    };
    Policy::from(MOST)
}

impl Plan {
    /// Returns how many calls there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the logs that the calls are about.
    pub(crate) fn logs(&self) -> Vec<Log> {
        let mut logs: Vec<Log> = self.calls.iter().map(|planned| planned.call.log()).collect();
        logs.sort_unstable();
        logs.dedup();
        logs
    }
}
