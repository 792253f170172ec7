//! One call of a decision over several limiters.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;

use super::background::{self, Background};
use crate::clock::BoxFuture;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::KeyBuf;
use crate::limiter::Limiter;
use crate::op::{At, EntryId, Mode};
use crate::policy::Policy;
use crate::request::call::Call;
use crate::request::permit::Permit;
use crate::request::run::Request;
use crate::request::verb::{self, Costs, NeverWaits};
use crate::request::view::{Target, View};
use crate::settlement::Receipt;
use crate::status::Status;
use crate::store::WindowStore;

/// One call of a [`Together`](super::Together): a request with options, and its answer.
///
/// It is made from an acquire, a record, a peek, which denies but is never charged, or a status, which never denies.
pub struct Part<'a, S> {
    target: Target<'a, S>,
    mode: Mode,
    cost: u64,
    at: At,
    id: Option<EntryId>,
    keeps_charge: bool,
    is_advisory: bool,
    answer: Option<Answer>,
    denies: bool,
    /// Whether the store answered without waiting, so it can be refunded without waiting.
    at_once: bool,
    /// The call that the store is answering, or was when it was too late. The mutex makes it `Sync` and is never locked.
    calling: Option<Mutex<BoxFuture<'static, Result<Decision, Error>>>>,
}

/// Whether a charge needs a receipt, because it may be refunded or settled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Receipts {
    Always,
    /// If the store does not answer at once: the value may be dropped while it answers.
    UnlessAtOnce,
    Never,
}

/// What came of one call.
#[derive(Debug)]
pub enum Answer {
    /// The call was admitted and charged.
    Admitted(Decision),
    /// The call does not fit.
    Denied(Decision),
    /// The call would fit or was refunded, and is not charged.
    Uncharged(Status),
    /// The call failed.
    Failed(Error),
}

impl<'a, S, B, V> From<Request<'a, S, B, V>> for Part<'a, S>
where
    B: AsRef<[u8]>,
    V: Costs + NeverWaits,
{
    fn from(request: Request<'a, S, B, V>) -> Self {
        Self::new(request.call(), false)
    }
}

impl<'a, S, B: AsRef<[u8]>> From<Request<'a, S, B, verb::Status>> for Part<'a, S> {
    fn from(request: Request<'a, S, B, verb::Status>) -> Self {
        Self::new(request.call(), true)
    }
}

impl<'a, S> Part<'a, S> {
    fn new<B: AsRef<[u8]>>(call: &Call<'a, S, B>, is_advisory: bool) -> Self {
        Self {
            target: Target::of(call),
            mode: call.mode,
            cost: call.cost,
            at: call.at,
            id: call.id,
            keeps_charge: false,
            is_advisory,
            answer: None,
            denies: false,
            at_once: false,
            calling: None,
        }
    }

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

    /// Lets this call deny nothing, whether it does not fit or fails. Add such calls last: they are charged only if all calls
    /// before them admit.
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

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &KeyBuf {
        &self.target.key
    }

    /// Returns the cost.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the policy of this call, `None` if it is the limiter's.
    #[must_use]
    pub fn own_policy(&self) -> Option<&Policy> {
        self.target.policy.as_deref()
    }

    /// Returns the answer; `None` before the call was made.
    #[must_use]
    pub const fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Returns the usage that the store reported last.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self.answer.as_ref()? {
            Answer::Admitted(decision) | Answer::Denied(decision) => Some(decision.status()),
            Answer::Uncharged(status) => Some(status),
            Answer::Failed(_) => None,
        }
    }

    /// Returns whether the answer denies the whole.
    #[must_use]
    pub const fn denies(&self) -> bool {
        self.denies
    }

    pub(super) const fn can_deny(&self) -> bool {
        !self.is_advisory
    }

    pub(super) const fn keeps_charge(&self) -> bool {
        self.keeps_charge
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match &self.answer {
            Some(Answer::Denied(decision)) => decision.retry_after(),
            _ => None,
        }
    }

    pub(super) fn take_error(&mut self) -> Option<Error> {
        match self.answer.take_if(|answer| self.denies && matches!(answer, Answer::Failed(_)))? {
            Answer::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// The receipt of a charge that is to be refunded if the whole is denied.
    fn refundable(&self) -> Option<Receipt> {
        match &self.answer {
            Some(Answer::Admitted(decision)) if !self.keeps_charge => decision.receipt(),
            _ => None,
        }
    }
}

impl<'a, S: WindowStore + Clone> Part<'a, S> {
    /// Looks, if another call denies, without charging.
    const fn mode(&self, denied: bool) -> Mode {
        if denied && !self.keeps_charge { Mode::Peek } else { self.mode }
    }

    fn call(&self, mode: Mode, receipt: bool) -> Call<'_, S, &[u8]> {
        let Self { cost, at, id, .. } = *self;
        Call { cost, at, id, keep: receipt && mode != Mode::Peek, ..self.target.call(mode) }
    }

    pub(super) fn poll(
        &mut self,
        denied: bool,
        receipts: Receipts,
        context: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        if self.calling.is_none() {
            let mode = self.mode(denied);
            if let Some(result) = self.call(mode, receipts == Receipts::Always).try_decide() {
                self.at_once = true;
                return Poll::Ready(result);
            }
            let owned = self.to_owned_call();
            let call = async move { owned.call(mode, receipts != Receipts::Never).apply().await };
            self.calling = Some(Mutex::new(Box::pin(call)));
        }
        let Some(calling) = &mut self.calling else { return Poll::Pending };
        let result = calling.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context);
        if result.is_ready() {
            self.calling = None;
        }
        result
    }

    #[inline]
    pub(super) fn set_answer(&mut self, result: Result<Decision, Error>, tolerate: impl Fn(&Error) -> bool) {
        let (answer, denies) = match result {
            Ok(decision) if self.is_advisory && self.mode == Mode::Peek => {
                (Answer::Uncharged(decision.into_status()), false)
            }
            Ok(decision) if decision.retry_after().is_some() => (Answer::Denied(decision), true),
            Ok(decision) if !decision.appended() => (Answer::Uncharged(decision.into_status()), false),
            Ok(decision) => (Answer::Admitted(decision), false),
            Err(error) => {
                // The choice may depend on the limiter, and not every error names it.
                let Target { limiter, key, .. } = &self.target;
                let error = if error.limiter_name().is_none() { error.with_log(limiter.log(key)) } else { error };
                let denies = !self.is_advisory && !tolerate(&error);
                (Answer::Failed(error), denies)
            }
        };
        self.denies = denies && !self.is_advisory;
        self.answer = Some(answer);
    }

    /// Replaces the cost of a charge; 0 refunds it. Returns `false` if nothing is charged, the entry has expired, or it has no
    /// receipt.
    ///
    /// # Errors
    /// If the store fails. The charge then stays.
    pub async fn settle(&mut self, cost: u64) -> Result<bool, Error> {
        let Some(Answer::Admitted(decision)) = &self.answer else { return Ok(false) };
        let Some(receipt) = decision.receipt() else { return Ok(false) };
        let settled = self.target.settle(receipt, cost).await?;
        self.answer = Some(Answer::Uncharged(settled.status().clone()));
        Ok(settled.applied())
    }

    /// Removes the whole log of the key, and reads the usage again.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn reset(&mut self) -> Result<bool, Error> {
        let removed = self.target.limiter.reset(&self.target.key).await?;
        let status = self.target.call(Mode::Peek).decide().await?.into_status();
        self.answer = Some(Answer::Uncharged(status));
        Ok(removed)
    }

    /// Returns the permit of a charge.
    #[must_use]
    pub fn permit(&self) -> Option<Permit<'static, S>> {
        match &self.answer {
            Some(Answer::Admitted(decision)) => Permit::new(self.target.to_owned(), decision.clone()),
            _ => None,
        }
    }

    pub(super) async fn refund(&mut self) {
        if !self.keeps_charge {
            let _ = self.settle(0).await;
        }
    }

    /// Forgets the answer, so that the call is made again, unless it is charged already.
    pub(super) fn forget(&mut self) {
        if !matches!(self.answer, Some(Answer::Admitted(_))) {
            (self.answer, self.denies) = (None, false);
        }
    }

    /// Refunds what is charged, or turns out to be charged when the store has answered.
    pub(super) fn abandon(&mut self, background: Option<&Background>) {
        if self.at_once {
            let _ = self.refund().now_or_never();
            return;
        }
        let receipt = self.refundable();
        let calling = self.calling.take().filter(|_| !self.keeps_charge);
        let calling = calling.map(|calling| calling.into_inner().unwrap_or_else(PoisonError::into_inner));
        if receipt.is_none() && calling.is_none() {
            return;
        }
        let target = self.target.to_owned();
        let refund: BoxFuture<'static, ()> = Box::pin(async move {
            let receipt = match calling {
                Some(calling) => calling
                    .await
                    .ok()
                    .filter(|decision| decision.retry_after().is_none())
                    .and_then(|decision| decision.receipt()),
                None => receipt,
            };
            if let Some(receipt) = receipt {
                let _ = target.settle(receipt, 0).await;
            }
        });
        match background {
            Some(background) => background.run(refund),
            None => background::run_by_default(refund),
        }
    }

    /// Returns the same call without what it borrows and without its answer.
    fn to_owned_call(&self) -> Part<'static, S> {
        let Self { mode, cost, at, id, keeps_charge, is_advisory, denies, at_once, .. } = *self;
        let (target, answer, calling) = (self.target.to_owned(), None, None);
        Part { target, mode, cost, at, id, keeps_charge, is_advisory, denies, at_once, answer, calling }
    }

    pub(super) fn into_owned(mut self) -> Part<'static, S> {
        let (answer, calling) = (self.answer.take(), self.calling.take());
        Part { answer, calling, ..self.to_owned_call() }
    }
}

impl<S> fmt::Debug for Part<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Part");
        out.field("limiter", &self.limiter().name()).field("mode", &self.mode).field("cost", &self.cost);
        out.field("answer", &self.answer).finish_non_exhaustive()
    }
}
