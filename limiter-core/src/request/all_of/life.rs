//! The life of one call: asked, calling, charged or done.

use std::future::ready;
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::task::{self, Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;

use super::background::{self, Background};
use super::part::Part;
use crate::clock::BoxFuture;
use crate::decision::Decision;
use crate::error::Error;
use crate::op::{EntryId, Mode};
use crate::request::call::Call;
use crate::request::view::Target;
use crate::status::Status;
use crate::store::WindowStore;

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

/// What a call asks of its store.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) mode: Mode,
    pub(super) cost: u64,
    id: Option<EntryId>,
    is_status: bool,
}

impl Ask {
    pub(super) const STATUS: Self = Self { mode: Mode::Peek, cost: 1, id: None, is_status: true };

    pub(super) const fn of<S, B>(call: &Call<'_, S, B>) -> Self {
        Self { mode: call.mode, cost: call.cost, id: call.id, is_status: call.is_status }
    }

    pub(super) fn call<'c, S>(self, target: &'c Target<'_, S>, keep: bool) -> Call<'c, S, &'c [u8]> {
        let Self { mode, cost, id, is_status } = self;
        Call { cost, id, is_status, keep: keep && mode != Mode::Peek, ..target.call(mode) }
    }

    /// Asks for the same without charging. A record never denies, so it only reads the usage.
    fn look(self) -> Self {
        if self.mode == Mode::Record { Self::STATUS } else { Self { mode: Mode::Peek, ..self } }
    }
}

/// The life of one call.
pub(super) enum Life {
    /// The call is to be made.
    Asked,
    /// The store is answering.
    Calling(Calling),
    /// Charged. If the store answered immediately, it may refund immediately, without a runtime.
    Charged { decision: Decision, immediately: bool },
    /// Done: it does not fit.
    Denied(Decision),
    /// Done: no charge is left to refund.
    Uncharged(Status),
    /// Done: it failed. A store that was late may still charge.
    Failed { error: Option<Error>, denies: bool, late: Option<Calling> },
}

/// A call that the store is answering. The mutex makes it `Sync` and is never locked.
pub(super) struct Calling {
    ask: Ask,
    answer: Mutex<BoxFuture<'static, Result<Decision, Error>>>,
}

impl Life {
    pub(super) const fn is_made(&self) -> bool {
        !matches!(self, Self::Asked | Self::Calling(_))
    }

    pub(super) const fn outcome(&self) -> Option<PartOutcome<'_>> {
        Some(match self {
            Self::Charged { decision, .. } => PartOutcome::Charged(decision),
            Self::Denied(decision) => PartOutcome::Denied(decision),
            Self::Uncharged(status) => PartOutcome::Uncharged(status),
            Self::Failed { error: Some(error), .. } => PartOutcome::Failed(error),
            Self::Asked | Self::Calling(_) | Self::Failed { error: None, .. } => return None,
        })
    }

    fn answered(ask: Ask, decision: Decision, immediately: bool) -> Self {
        if ask.is_status {
            return Self::Uncharged(decision.into_status());
        }
        match decision.retry_after() {
            Some(_) => Self::Denied(decision),
            None if decision.appended() => Self::Charged { decision, immediately },
            None => Self::Uncharged(decision.into_status()),
        }
    }

    /// Forgets the outcome, so that the call is made again, unless it is charged already.
    pub(super) fn forget(&mut self) {
        *self = match mem::replace(self, Self::Asked) {
            charged @ Self::Charged { .. } => charged,
            Self::Calling(calling) | Self::Failed { late: Some(calling), .. } => Self::Calling(calling),
            _ => Self::Asked,
        };
    }
}

impl<S: WindowStore + Clone> Part<'_, S> {
    /// Makes the call, or only looks. `keep` says whether its charge may have to be refunded or settled: if the store answers
    /// immediately, and otherwise. `share` returns how long a store may take that does not. An error is the caller's to
    /// [note](Self::fail).
    pub(super) fn poll(
        &mut self,
        looks: bool,
        keep: [bool; 2],
        share: impl FnOnce() -> Option<Duration>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let immediately = matches!(self.life, Life::Asked);
        if immediately {
            let ask = if looks && !self.keeps_charge { self.ask.look() } else { self.ask };
            if let Some(result) = ask.call(&self.target, keep[0]).try_decide() {
                self.life = Life::answered(ask, result?, true);
                return Poll::Ready(Ok(()));
            }
            let (target, timeout) = (self.target.to_owned(), share());
            let answer = async move { Call { timeout, ..ask.call(&target, keep[1]) }.apply().await };
            self.life = Life::Calling(Calling { ask, answer: Mutex::new(Box::pin(answer)) });
        }
        let Life::Calling(Calling { ask, answer }) = &mut self.life else { return Poll::Ready(Ok(())) };
        let (ask, answer) = (*ask, answer.get_mut().unwrap_or_else(PoisonError::into_inner));
        let result = task::ready!(answer.as_mut().poll(context));
        self.life = Life::Asked;
        self.life = Life::answered(ask, result?, immediately);
        Poll::Ready(Ok(()))
    }

    /// Refunds what is charged, or turns out to be charged when the store has answered.
    pub(super) fn abandon(&mut self, background: Option<&Background>) {
        if self.keeps_charge {
            return;
        }
        let (answer, immediately): (BoxFuture<'static, _>, _) = match mem::replace(&mut self.life, Life::Asked) {
            Life::Charged { decision, immediately } => (Box::pin(ready(Ok(decision))), immediately),
            Life::Calling(calling) | Life::Failed { late: Some(calling), .. } => {
                (calling.answer.into_inner().unwrap_or_else(PoisonError::into_inner), false)
            }
            _ => return,
        };
        let target = self.target.to_owned();
        let mut refund: BoxFuture<'static, ()> = Box::pin(async move {
            let charged = answer.await.ok().filter(|decision| decision.retry_after().is_none());
            if let Some(receipt) = charged.and_then(|decision| decision.receipt()) {
                let _ = target.settle(receipt, 0).await;
            }
        });
        // A store over a network may need a runtime, which a drop need not have.
        if immediately && (&mut refund).now_or_never().is_some() {
            return;
        }
        match background {
            Some(background) => background.run(refund),
            None => background::run_by_default(refund),
        }
    }
}
