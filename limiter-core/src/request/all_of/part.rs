//! The calls of a decision over several limiters.

use std::sync::Arc;

use crate::decision::Decision;
use crate::error::{Error, ErrorKind};
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::call::Call;
use crate::request::permit::Permit;
use crate::request::target::{BorrowedOrShared, Target};
use crate::request::verbs::{Acquire, Peek, ReadStatus, Record};
use crate::status::Status;
use crate::store::WindowStore;
use crate::store::log_key::LogKey;
use crate::store::op::Mode;

/// One call of an [`AllOf`](super::AllOf): a request with options, and its outcome.
///
/// It is made from an acquire, a record, a peek, which denies but is never charged, or a status, which never denies.
#[derive(Debug)]
pub struct Part<'a, S> {
    pub(super) target: Target<'a, S>,
    mode: Mode,
    is_status: bool,
    cost: u64,
    pub(super) keeps_charge: bool,
    pub(super) is_advisory: bool,
    fails_open: bool,
    pub(super) outcome: Option<PartOutcome>,
}

/// What came of one call.
#[derive(Debug)]
pub enum PartOutcome {
    /// The call was admitted and charged. While its store is down and admits, the charge has [no entry](Decision::appended).
    Charged(Decision),
    /// The call does not fit.
    Denied(Decision),
    /// The call would fit, or was settled or refunded.
    Uncharged(Status),
    /// The call failed.
    Failed(Error),
}

/// A part is made from a request without its options for waiting.
macro_rules! part_from {
    ($($request:ident),*) => {$(
        impl<'a, S, B: AsRef<[u8]>> From<$request<'a, S, B>> for Part<'a, S> {
            fn from(request: $request<'a, S, B>) -> Self {
                Self::new(&request.call)
            }
        }
    )*};
}
part_from!(Acquire, Record, Peek, ReadStatus);

impl<'a, S> Part<'a, S> {
    fn new(call: &Call<'a, S, impl AsRef<[u8]>>) -> Self {
        let is_status = call.hints.is_status;
        Self {
            target: Target::of(call),
            mode: call.mode,
            cost: call.cost,
            is_status,
            keeps_charge: false,
            is_advisory: is_status,
            fails_open: false,
            outcome: None,
        }
    }

    /// Sets the policy for this call, like [`Acquire::policy`], and copies it.
    #[must_use]
    pub fn policy(mut self, policy: &Policy) -> Self {
        self.target.policy = Some(BorrowedOrShared::Shared(Arc::new(policy.clone())));
        self
    }

    /// Charges the call even if another one denies.
    #[must_use]
    pub fn keep_charge(mut self) -> Self {
        self.keeps_charge = true;
        self
    }

    /// Makes the call one that never denies, even if it does not fit or fails. It is then made last, and charged only if all others
    /// admit.
    #[must_use]
    pub fn advisory(mut self) -> Self {
        self.is_advisory = true;
        self
    }

    /// Leaves the call out if its store fails. Otherwise the whole fails.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.fails_open = true;
        self
    }

    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        &self.target.limiter
    }

    /// Returns the policy of this call, `None` if it is the limiter's.
    #[must_use]
    pub fn own_policy(&self) -> Option<&Policy> {
        self.target.policy.as_deref()
    }

    /// Returns the cost of the call.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns what came of the call. `None` before it was made.
    #[must_use]
    pub const fn outcome(&self) -> Option<&PartOutcome> {
        self.outcome.as_ref()
    }

    /// Returns the usage that the store reported last.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self.outcome.as_ref()? {
            PartOutcome::Charged(decision) | PartOutcome::Denied(decision) => {
                Some(decision.status())
            }
            PartOutcome::Uncharged(status) => Some(status),
            PartOutcome::Failed(_) => None,
        }
    }

    /// Returns the error of a call that failed.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        match &self.outcome {
            Some(PartOutcome::Failed(error)) => Some(error),
            _ => None,
        }
    }

    const fn charge(&self) -> Option<&Decision> {
        match &self.outcome {
            Some(PartOutcome::Charged(decision)) => Some(decision),
            _ => None,
        }
    }

    /// Returns the charge's permit.
    #[must_use]
    pub fn permit(&self) -> Option<Permit<'a, S>>
    where
        S: Clone,
    {
        Permit::of_entry(self.target.clone(), self.charge()?.clone())
    }

    pub(super) fn into_permit(self) -> Option<Permit<'a, S>> {
        match self.outcome {
            Some(PartOutcome::Charged(charge)) => Permit::of_entry(self.target, charge),
            _ => None,
        }
    }

    /// Returns `true` if the outcome denies the whole, as does a call that was not made.
    #[must_use]
    pub fn denies(&self) -> bool {
        use ErrorKind::{CostExceedsLimit, InvalidCost, NeedsExactLimit};
        let denies = match &self.outcome {
            None | Some(PartOutcome::Denied(_)) => true,
            // The call is wrong, whatever its store does.
            Some(PartOutcome::Failed(error)) => {
                let is_invalid = [CostExceedsLimit, InvalidCost, NeedsExactLimit];
                !self.fails_open || is_invalid.contains(&error.kind())
            }
            Some(PartOutcome::Charged(_) | PartOutcome::Uncharged(_)) => false,
        };
        denies && !self.is_advisory
    }

    /// Returns the call to make. If another call denied, it only looks. A record never denies, so it then reads the usage.
    pub(super) fn call(&self, looks: bool, wants_receipt: bool) -> Call<'_, S, &[u8]> {
        let looks = looks && !self.keeps_charge;
        let is_status = self.is_status || (looks && self.mode == Mode::Record);
        let mode = if looks { Mode::Peek } else { self.mode };
        let mut call = Call {
            cost: if is_status { 1 } else { self.cost },
            ..self.target.call(mode)
        };
        call.hints.is_status = is_status;
        call.hints.wants_receipt = wants_receipt && mode != Mode::Peek;
        call
    }

    /// Returns the error of an invalid call, for which its store need not be asked.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.call(false, false).op().checked().map(drop)
    }

    pub(super) fn log(&self) -> LogKey<'_> {
        self.limiter().log(&self.target.key)
    }

    /// Notes what the store returned.
    pub(super) fn note(&mut self, decision: Result<Decision, Error>) {
        // A record is only looked up, or never denied.
        let denies = !self.is_status && self.mode != Mode::Record;
        self.outcome = Some(match decision {
            Ok(decision) if decision.is_denied() && denies => PartOutcome::Denied(decision),
            Ok(decision) if decision.appended() || decision.is_uncounted() => {
                PartOutcome::Charged(decision)
            }
            Ok(decision) => PartOutcome::Uncharged(decision.into_status()),
            Err(error) => PartOutcome::Failed(error.with_log(self.log())),
        });
    }

    /// Returns `true` if a denial by another call refunds the charge. A repetition's charge stays.
    pub(super) fn is_undone(&self) -> bool {
        let is_new = |charge: &Decision| self.target.id.is_none() || !charge.is_repeated();
        let has_receipt = |charge: &Decision| charge.receipt().is_some() && is_new(charge);
        !self.keeps_charge && self.charge().is_some_and(has_receipt)
    }

    pub(super) fn into_owned(self) -> Part<'static, S>
    where
        S: Clone,
    {
        Part {
            target: self.target.into_owned(),
            ..self
        }
    }
}

impl<S: WindowStore> Part<'_, S> {
    pub(super) fn store(&self) -> &S {
        self.limiter().store()
    }

    /// Returns when the call is made. A record never denies; it can only fail. One above the maximum cannot be undone.
    pub(super) fn turn(&self) -> impl Ord + use<S> {
        let is_record = self.mode == Mode::Record;
        let call = self.call(false, false);
        let is_final = self.mode == Mode::Acquire && call.op().receipt_window().is_none();
        let identity = self.store().identity();
        (self.is_advisory, is_record, is_final, identity)
    }

    /// Returns `true` if a store may make both calls as one.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        let identity = self.store().identity();
        identity.is_some()
            && identity == other.store().identity()
            && self.target.at == other.target.at
    }

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
        self.outcome = Some(PartOutcome::Uncharged(settled.status().clone()));
        Ok(settled.applied())
    }

    /// Removes the whole log of the key, and reads the usage again. Returns `false` if there was no log.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn reset(&mut self) -> Result<bool, Error> {
        let limiter = self.limiter();
        let key = self.target.key.as_ref();
        let removed = limiter.reset(key).await?;
        let status = limiter.status(key).await?;
        self.outcome = Some(PartOutcome::Uncharged(status));
        Ok(removed)
    }
}
