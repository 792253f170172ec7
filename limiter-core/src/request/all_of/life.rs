//! The life of one call: asked, charged or done.

use std::mem;

use crate::decision::Decision;
use crate::error::Error;
use crate::op::{EntryId, Mode};
use crate::request::call::Call;
use crate::request::view::Target;
use crate::status::Status;

/// What came of one call.
#[derive(Clone, Copy, Debug)]
pub enum PartOutcome<'p> {
    /// The call was admitted and charged.
    Charged(&'p Decision),
    /// The call does not fit.
    Denied(&'p Decision),
    /// The call would fit, or was settled or refunded: no charge is left to refund.
    Uncharged(&'p Status),
    /// The call failed.
    Failed(&'p Error),
}

/// A call's request to its store.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) mode: Mode,
    pub(super) cost: u64,
    pub(super) id: Option<EntryId>,
    pub(super) is_status: bool,
    /// Whether the entry needs a receipt.
    pub(super) keep: bool,
}

impl Ask {
    pub(super) const STATUS: Self = Self { mode: Mode::Peek, cost: 1, id: None, is_status: true, keep: false };

    pub(super) const fn of<S, B>(call: &Call<'_, S, B>) -> Self {
        Self { mode: call.mode, cost: call.cost, id: call.id, is_status: call.is_status, keep: call.keep }
    }

    pub(super) fn call<'c, S>(self, target: &'c Target<'_, S>) -> Call<'c, S, &'c [u8]> {
        let Self { mode, cost, id, is_status, keep } = self;
        Call { cost, id, is_status, keep: keep && mode != Mode::Peek, ..target.call(mode) }
    }

    /// Returns whether the decision repeats an earlier one with the caller's key.
    pub(super) fn repeats(self, decision: &Decision) -> bool {
        self.id.is_some() && decision.is_repeated()
    }

    /// Asks for the same without charging. A record never denies, so it only reads the usage.
    pub(super) fn look(self) -> Self {
        if self.mode == Mode::Record { Self::STATUS } else { Self { mode: Mode::Peek, ..self } }
    }
}

/// The life of one call.
pub(super) enum Life {
    /// The call is to be made, or is pending.
    Asked,
    /// Charged. If the store decided immediately, it may refund immediately, without a runtime.
    Charged { decision: Decision, immediately: bool },
    /// Done: it does not fit.
    Denied(Decision),
    /// Done: no charge is left to refund.
    Uncharged(Status),
    /// Done: it failed.
    Failed { error: Option<Error>, denies: bool },
}

impl Life {
    pub(super) const fn is_made(&self) -> bool {
        !matches!(self, Self::Asked)
    }

    pub(super) const fn outcome(&self) -> Option<PartOutcome<'_>> {
        Some(match self {
            Self::Charged { decision, .. } => PartOutcome::Charged(decision),
            Self::Denied(decision) => PartOutcome::Denied(decision),
            Self::Uncharged(status) => PartOutcome::Uncharged(status),
            Self::Failed { error: Some(error), .. } => PartOutcome::Failed(error),
            Self::Asked | Self::Failed { error: None, .. } => return None,
        })
    }

    pub(super) fn answered(ask: Ask, decision: Decision, immediately: bool) -> Self {
        match decision.retry_after() {
            Some(_) if ask.mode != Mode::Record && !ask.is_status => Self::Denied(decision),
            None if decision.appended() => Self::Charged { decision, immediately },
            _ => Self::Uncharged(decision.into_status()),
        }
    }

    /// Forgets the outcome, so that the call is made again, unless it is charged already.
    pub(super) fn forget(&mut self) {
        *self = match mem::replace(self, Self::Asked) {
            charged @ Self::Charged { .. } => charged,
            _ => Self::Asked,
        };
    }
}
