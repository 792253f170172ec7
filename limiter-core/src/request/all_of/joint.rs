//! The calls of a decision over several limiters, and what it returns.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{AllOf, within};
use crate::decision::Decision;
use crate::error::{Error, ErrorKind};
use crate::limiter::{Limiter, SharedStore};
use crate::name::Name;
use crate::policy::Policy;
use crate::request::acquire::Acquire;
use crate::request::call::Call;
use crate::request::peek::{Peek, ReadStatus};
use crate::request::permit::Permit;
use crate::request::record::Record;
use crate::request::view::{Target, View};
use crate::status::Status;
use crate::store::WindowStore;
use crate::store::log_key::LogKey;
use crate::store::op::{EntryId, Mode};
use crate::verdict::Denied;

/// The decision of an [`AllOf`].
#[must_use = "a decision may be a denial"]
#[derive(Debug)]
pub struct JointDecision<'a, S: WindowStore = SharedStore>(pub(super) AllOf<'a, S>);

/// The denial of an [`AllOf`] as an error: the limiters that denied, with their decisions, in the order of the calls.
#[derive(Clone, Debug)]
pub struct JointDenied(Vec<(Name, Denied)>);

impl<'a, S: WindowStore> JointDecision<'a, S> {
    /// Returns the calls and their outcomes, in the order in which they were added.
    #[must_use]
    pub fn parts(&self) -> &[Part<'a, S>] {
        &self.0.parts
    }

    /// Returns the calls, to settle them.
    pub fn parts_mut(&mut self) -> &mut [Part<'a, S>] {
        &mut self.0.parts
    }

    /// Returns `true` if a call denies or failed. Then nothing is charged, except by calls that [keep theirs](Part::keeps_charge).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.0.is_denied()
    }

    /// Returns how long to wait until the same calls fit, if nothing else is charged. `None` if none denies, or if one failed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let denying = self.parts().iter().filter(|part| part.denies());
        let waits = denying.map(|part| match &part.outcome {
            Some(PartOutcome::Denied(decision)) => decision.retry_after(),
            _ => None,
        });
        waits.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// Takes the first error of a call that denies.
    pub fn take_error(&mut self) -> Option<Error> {
        let is_failed = |outcome: &mut PartOutcome| matches!(outcome, PartOutcome::Failed(_));
        let mut denying = self.0.parts.iter_mut().filter(|part| part.denies());
        match denying.find_map(|part| part.outcome.take_if(is_failed))? {
            PartOutcome::Failed(error) => Some(error),
            _ => None,
        }
    }

    pub(super) fn or_error(mut self) -> Result<Self, Error> {
        self.take_error().map_or(Ok(self), Err)
    }

    /// Returns the charges in the order of the calls, to settle or refund them, or the error [`JointDenied`], for `?`.
    ///
    /// # Errors
    /// [`JointDenied`] if a call denies.
    pub fn into_result(self) -> Result<Vec<Permit<'a, S>>, JointDenied> {
        let (is_denied, parts) = (self.is_denied(), self.0.parts.into_iter());
        let (mut permits, mut denials) = (Vec::new(), Vec::new());
        for part in parts.filter(|part| !is_denied || part.denies()) {
            let name = part.limiter().name();
            match part.outcome {
                Some(PartOutcome::Charged(charge)) => {
                    permits.extend(Permit::of_entry(part.target, charge));
                }
                Some(PartOutcome::Denied(denial)) if is_denied => {
                    denials.push((name, Denied::new(denial)));
                }
                _ => {}
            }
        }
        if is_denied {
            Err(JointDenied(denials))
        } else {
            Ok(permits)
        }
    }

    /// Returns the same calls, to be made again after a denial. Those whose charge is kept are not made again.
    pub fn again(mut self) -> AllOf<'a, S> {
        for part in &mut self.0.parts {
            part.outcome
                .take_if(|outcome| !matches!(outcome, PartOutcome::Charged(_)));
        }
        self.0
    }

    /// Returns the same decision without its borrows, so that it can move into a task.
    pub fn into_owned(self) -> JointDecision<'static, S>
    where
        S: Clone,
    {
        JointDecision(self.0.into_owned())
    }

    /// Refunds all charges except [kept](Part::keeps_charge) ones. If the store fails, the charge stays.
    ///
    /// # Cancel safety
    /// Dropping the future may leave charges.
    pub async fn refund(&mut self) {
        let share = self.0.share(1);
        for part in self.0.parts.iter_mut().filter(|part| part.is_undone()) {
            let _ = within(share, part.settle(0)).await;
        }
    }
}

impl JointDenied {
    /// Returns how long to wait until the same calls fit, if nothing else is charged.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.iter().map(|(_, denied)| denied.retry_after()).max()
    }

    /// Returns the limiters that denied, with their decisions.
    pub fn denials(&self) -> impl Iterator<Item = (Name, &Decision)> {
        self.0
            .iter()
            .map(|(name, denied)| (*name, denied.decision()))
    }
}

impl fmt::Display for JointDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.0.iter().max_by_key(|(_, denied)| denied.retry_after());
        longest.map_or(Ok(()), |(name, denied)| write!(f, "{name}: {denied}"))
    }
}

impl std::error::Error for JointDenied {}

/// One call of an [`AllOf`]: a request with options, and its outcome.
///
/// It is made from an acquire, a record, a peek, which denies but is never charged, or a status, which never denies.
pub struct Part<'a, S> {
    target: Target<'a, S>,
    mode: Mode,
    id: Option<EntryId>,
    is_status: bool,
    /// The cost.
    pub cost: u64,
    /// Whether it is charged even if another call denies. Default: `false`.
    pub keeps_charge: bool,
    /// Whether it never denies, even if it does not fit or fails. It is then made last, and charged only if all others admit.
    /// Default: `false`.
    pub is_advisory: bool,
    /// Whether it is left out if its store fails. Default: `false`, so the whole fails.
    pub fails_open: bool,
    /// What came of it. `None` before it was made, and once its error was taken.
    pub outcome: Option<PartOutcome>,
}

/// What came of one call.
#[derive(Debug)]
pub enum PartOutcome {
    /// The call was admitted and charged.
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
            id: call.id,
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
        self.target.policy = Some(View::Shared(Arc::new(policy.clone())));
        self
    }

    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        &self.target.limiter
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.target.key.as_ref()
    }

    /// Returns the policy of this call, `None` if it is the limiter's.
    #[must_use]
    pub fn own_policy(&self) -> Option<&Policy> {
        self.target.policy.as_deref()
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

    const fn charge(&self) -> Option<&Decision> {
        match &self.outcome {
            Some(PartOutcome::Charged(decision)) => Some(decision),
            _ => None,
        }
    }

    /// Returns the charge's permit.
    #[must_use]
    pub fn permit(&self) -> Option<Permit<'static, S>>
    where
        S: Clone,
    {
        Permit::of_entry(self.target.clone().into_owned(), self.charge()?.clone())
    }

    /// Returns `true` if the outcome denies the whole.
    #[must_use]
    pub fn denies(&self) -> bool {
        use ErrorKind::{CostExceedsLimit, InvalidCost};
        !self.is_advisory
            && match &self.outcome {
                Some(PartOutcome::Denied(_)) => true,
                Some(PartOutcome::Failed(error)) => {
                    !self.fails_open || matches!(error.kind(), InvalidCost | CostExceedsLimit)
                }
                _ => false,
            }
    }

    /// Returns the call to make. If another call denied, it only looks. A record never denies, so it then reads the usage.
    pub(super) fn call(&self, looks: bool, wants_receipt: bool) -> Call<'_, S, &[u8]> {
        let looks = looks && !self.keeps_charge;
        let is_status = self.is_status || (looks && self.mode == Mode::Record);
        let mode = if looks { Mode::Peek } else { self.mode };
        let mut call = Call {
            cost: if is_status { 1 } else { self.cost },
            id: self.id,
            ..self.target.call(mode)
        };
        call.hints.is_status = is_status;
        call.hints.wants_receipt = wants_receipt && mode != Mode::Peek;
        call
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
            Ok(decision) if decision.appended() => PartOutcome::Charged(decision),
            Ok(decision) => PartOutcome::Uncharged(decision.into_status()),
            // Not every error contains the limiter's name.
            Err(error) if error.limiter_name().is_none() => {
                PartOutcome::Failed(error.with_log(self.log()))
            }
            Err(error) => PartOutcome::Failed(error),
        });
    }

    /// Returns `true` if a denial by another call refunds the charge. A repetition's charge stays.
    pub(super) fn is_undone(&self) -> bool {
        let is_new = |charge: &Decision| self.id.is_none() || !charge.is_repeated();
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
        let (is_record, is_acquire) = (self.mode == Mode::Record, self.mode == Mode::Acquire);
        let call = self.call(false, false);
        let is_final = call.op().receipt_window().is_none();
        let identity = self.store().identity();
        (
            self.is_advisory,
            is_record,
            is_acquire && is_final,
            identity,
        )
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
}

impl<S> fmt::Debug for Part<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Part");
        out.field("limiter", &self.limiter().name())
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}
