//! The life of one call: asked, charged or done.

use crate::decision::Decision;
use crate::error::Error;
use crate::op::{EntryId, Mode};
use crate::request::call::Call;
use crate::request::view::Target;
use crate::status::Status;

/// What came of one call.
#[derive(Debug)]
pub enum PartOutcome {
    /// The call was admitted and charged.
    Charged(Decision),
    /// The call does not fit.
    Denied(Decision),
    /// The call would fit, or was settled or refunded: no charge is left to refund.
    Uncharged(Status),
    /// The call failed.
    Failed(Error),
}

impl PartOutcome {
    pub(super) fn of(ask: Ask, decision: Decision) -> Self {
        match decision.retry_after() {
            Some(_) if ask.mode != Mode::Record && !ask.is_status => Self::Denied(decision),
            None if decision.appended() => Self::Charged(decision),
            _ => Self::Uncharged(decision.into_status()),
        }
    }
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
    pub(super) const STATUS: Self = Self {
        mode: Mode::Peek,
        cost: 1,
        id: None,
        is_status: true,
        keep: false,
    };

    pub(super) const fn of<S, B>(call: &Call<'_, S, B>) -> Self {
        Self {
            mode: call.mode,
            cost: call.cost,
            id: call.id,
            is_status: call.is_status,
            keep: call.keep,
        }
    }

    pub(super) fn call<'c, S>(self, target: &'c Target<'_, S>) -> Call<'c, S, &'c [u8]> {
        let Self {
            mode,
            cost,
            id,
            is_status,
            keep,
        } = self;
        Call {
            cost,
            id,
            is_status,
            keep: keep && mode != Mode::Peek,
            ..target.call(mode)
        }
    }

    /// Returns whether the decision repeats an earlier one with the caller's key.
    pub(super) fn repeats(self, decision: &Decision) -> bool {
        self.id.is_some() && decision.is_repeated()
    }

    /// Asks for the same without charging. A record never denies, so it only reads the usage.
    pub(super) fn look(self) -> Self {
        if self.mode == Mode::Record {
            Self::STATUS
        } else {
            Self {
                mode: Mode::Peek,
                ..self
            }
        }
    }
}

/// The life of one call, which is to be made, or is pending, until it is made.
#[derive(Default)]
pub(super) struct Life {
    pub(super) is_made: bool,
    /// `None` before the call is made, and once its error was taken.
    pub(super) outcome: Option<PartOutcome>,
    /// Whether it failed and does not deny.
    pub(super) is_tolerated: bool,
    /// Whether the store decided immediately. It may then refund immediately, without a runtime.
    pub(super) immediately: bool,
}

impl Life {
    pub(super) fn made(outcome: PartOutcome) -> Self {
        Self {
            is_made: true,
            outcome: Some(outcome),
            ..Self::default()
        }
    }

    /// Forgets the outcome, so that the call is made again, unless it is charged already.
    pub(super) fn forget(&mut self) {
        if !matches!(self.outcome, Some(PartOutcome::Charged(_))) {
            *self = Self::default();
        }
    }
}
