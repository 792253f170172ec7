//! One call of a decision over several limiters: its request and its options.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::background::{self, Background};
use super::life::{Ask, Life, PartOutcome};
use crate::clock::BoxFuture;
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::log_key::LogKey;
use crate::op::Mode;
use crate::policy::Policy;
use crate::request::permit::Permit;
use crate::request::run::Request;
use crate::request::verb::Verb;
use crate::request::view::{Target, View};
use crate::status::Status;
use crate::store::WindowStore;

/// One call of a [`AllOf`](super::AllOf): a request with options, and its outcome.
///
/// It is made from an acquire, a record, a peek, which denies but is never charged, or a status, which never denies.
pub struct Part<'a, S> {
    pub(super) target: Target<'a, S>,
    pub(super) ask: Ask,
    pub(super) keeps_charge: bool,
    pub(super) is_advisory: bool,
    pub(super) life: Life,
}

/// When a call is made. A record never denies; it can only fail. One above the maximum cannot be undone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    MayNotFit,
    Records,
    Advises,
}

impl<'a, S, B: AsRef<[u8]>, V: Verb> From<Request<'a, S, B, V>> for Part<'a, S> {
    fn from(request: Request<'a, S, B, V>) -> Self {
        let (target, ask, is_advisory) = (
            Target::of(request.call()),
            Ask::of(request.call()),
            V::IS_STATUS,
        );
        Self {
            target,
            ask,
            keeps_charge: false,
            is_advisory,
            life: Life::default(),
        }
    }
}

impl<'a, S> Part<'a, S> {
    /// Keeps the charge of this call when another call denies. It is charged whatever the others decide.
    #[must_use]
    pub fn keep_charge(mut self) -> Self {
        self.keeps_charge = true;
        self
    }

    /// Sets whether the charge of this call is kept when the whole is denied or dropped.
    pub fn set_keep_charge(&mut self, keep: bool) {
        self.keeps_charge = keep;
    }

    /// Lets this call deny nothing, whether it does not fit or fails. It is made last, and charged only if all others admit.
    #[must_use]
    pub fn advisory(mut self) -> Self {
        self.is_advisory = true;
        self
    }

    /// Sets the policy for this call, like [`Request::policy`], without borrowing it.
    #[must_use]
    pub fn under(mut self, policy: Arc<Policy>) -> Self {
        self.target.policy = Some(View::Shared(policy));
        self
    }

    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        &self.target.limiter
    }

    /// Returns the cost.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.ask.cost
    }

    /// Returns the policy of this call, `None` if it is the limiter's.
    #[must_use]
    pub fn own_policy(&self) -> Option<&Policy> {
        self.target.policy.as_deref()
    }

    /// Returns the outcome; `None` before the call was made.
    #[must_use]
    pub const fn outcome(&self) -> Option<&PartOutcome> {
        self.life.outcome.as_ref()
    }

    /// Returns the usage that the store reported last.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self.outcome()? {
            PartOutcome::Charged(decision) | PartOutcome::Denied(decision) => {
                Some(decision.status())
            }
            PartOutcome::Uncharged(status) => Some(status.clone()),
            PartOutcome::Failed(_) => None,
        }
    }

    /// Returns whether the outcome denies the whole.
    #[must_use]
    pub const fn denies(&self) -> bool {
        let Life {
            is_made,
            outcome,
            is_tolerated,
            ..
        } = &self.life;
        let admits = matches!(
            outcome,
            Some(PartOutcome::Charged(_) | PartOutcome::Uncharged(_))
        );
        *is_made && !admits && !*is_tolerated && !self.is_advisory
    }

    /// Returns whether the call denies, or may deny once it is made.
    pub(super) const fn may_deny(&self) -> bool {
        self.denies() || (!self.is_advisory && !self.life.is_made)
    }

    pub(super) fn turn(&self) -> Turn {
        match self.ask.mode {
            _ if self.is_advisory => Turn::Advises,
            Mode::Record => Turn::Records,
            Mode::Acquire | Mode::Peek => Turn::MayNotFit,
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        if let Some(PartOutcome::Denied(decision)) = self.outcome() {
            decision.retry_after()
        } else {
            None
        }
    }

    pub(super) fn take_error(&mut self) -> Option<Error> {
        let denies = self.denies();
        let is_failure =
            |outcome: &mut PartOutcome| denies && matches!(outcome, PartOutcome::Failed(_));
        let taken = self.life.outcome.take_if(is_failure);
        if let Some(PartOutcome::Failed(error)) = taken {
            Some(error)
        } else {
            None
        }
    }

    /// Notes what the store decided.
    pub(super) fn note(
        &mut self,
        ask: Ask,
        decision: Result<Decision, Error>,
        immediately: bool,
        tolerate: &impl Fn(&Error) -> bool,
    ) {
        match decision {
            Ok(decision) => {
                self.life = Life {
                    immediately,
                    ..Life::made(PartOutcome::of(ask, decision))
                }
            }
            Err(error) => self.fail(error, tolerate),
        }
    }

    /// Notes that the call failed.
    pub(super) fn fail(&mut self, error: Error, tolerate: &impl Fn(&Error) -> bool) {
        // The choice may depend on the limiter, and not every error names it.
        let error = if error.limiter_name().is_none() {
            error.with_log(self.log())
        } else {
            error
        };
        let is_tolerated = self.is_advisory || tolerate(&error);
        self.life = Life {
            is_tolerated,
            ..Life::made(PartOutcome::Failed(error))
        };
    }

    /// Returns the call's request to its store. `looks` if another one denied; `keep` if the charge may be refunded or settled.
    pub(super) fn asks(&self, looks: bool, keep: bool) -> Ask {
        let ask = if looks && !self.keeps_charge {
            self.ask.look()
        } else {
            self.ask
        };
        Ask {
            keep: keep || ask.keep,
            ..ask
        }
    }

    pub(super) fn log(&self) -> LogKey<'_> {
        self.target.limiter.log(&self.target.key)
    }
}

impl<'a, S: WindowStore + Clone> Part<'a, S> {
    /// Replaces the charge's cost; 0 refunds it. Returns `false` if nothing is charged, the entry has expired, or it has no
    /// receipt.
    ///
    /// # Errors
    /// If the store fails. The charge then stays.
    pub async fn settle(&mut self, cost: u64) -> Result<bool, Error> {
        let Some(receipt) = self.charge().and_then(Decision::receipt) else {
            return Ok(false);
        };
        let settled = self.target.settle(receipt, cost).await?;
        self.life = Life::made(PartOutcome::Uncharged(settled.status().clone()));
        Ok(settled.applied())
    }

    /// Removes the whole log of the key, and reads the usage again.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn reset(&mut self) -> Result<bool, Error> {
        let removed = self.target.limiter.reset(&self.target.key).await?;
        let status = Ask::STATUS.call(&self.target).decide().await?.into_status();
        self.life = Life::made(PartOutcome::Uncharged(status));
        Ok(removed)
    }

    /// Returns the charge's permit; `None` if nothing is charged, or the charge has no receipt.
    #[must_use]
    pub fn permit(&self) -> Option<Permit<'static, S>> {
        Permit::new(self.target.to_owned(), self.charge()?.clone())
    }

    const fn charge(&self) -> Option<&Decision> {
        if let Some(PartOutcome::Charged(decision)) = self.outcome() {
            Some(decision)
        } else {
            None
        }
    }

    pub(super) async fn refund(&mut self) {
        if !self.keeps_charge
            && self
                .charge()
                .is_some_and(|decision| !self.ask.repeats(decision))
        {
            let _ = self.settle(0).await;
        }
    }

    /// Refunds a charge, unless the call repeats an earlier one: that one is not undone.
    pub(super) async fn undo(&self, decision: &Decision) {
        if !self.keeps_charge
            && !self.ask.repeats(decision)
            && let Some(receipt) = decision.receipt()
        {
            let _ = self.target.settle(receipt, 0).await;
        }
    }

    /// Refunds what is charged.
    pub(super) fn abandon(&mut self, background: Option<&Background>) {
        let Life {
            outcome: Some(PartOutcome::Charged(decision)),
            immediately,
            ..
        } = mem::take(&mut self.life)
        else {
            return;
        };
        if self.keeps_charge {
            return;
        }
        let asked = self.to_asked();
        let mut refund: BoxFuture<'static, ()> =
            Box::pin(async move { asked.undo(&decision).await });
        // A store over a network may need a runtime, which a drop need not have.
        if !immediately || (&mut refund).now_or_never().is_none() {
            background::run(background, refund);
        }
    }

    /// Returns whether a store may make both calls as one.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        let identity = |part: &Self| part.target.limiter.store.identity();
        self.target.at == other.target.at
            && identity(self).is_some()
            && identity(self) == identity(other)
    }

    pub(super) fn into_owned(self) -> Part<'static, S> {
        Part {
            target: self.target.to_owned(),
            ..self
        }
    }

    /// Returns the same call, without its outcome and its borrows.
    pub(super) fn to_asked(&self) -> Part<'static, S> {
        let Self {
            ask,
            keeps_charge,
            is_advisory,
            ..
        } = *self;
        Part {
            target: self.target.to_owned(),
            ask,
            keeps_charge,
            is_advisory,
            life: Life::default(),
        }
    }
}

impl<S> fmt::Debug for Part<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Part");
        out.field("limiter", &self.limiter().name())
            .field("mode", &self.ask.mode)
            .field("cost", &self.ask.cost);
        out.field("outcome", &self.outcome())
            .finish_non_exhaustive()
    }
}
