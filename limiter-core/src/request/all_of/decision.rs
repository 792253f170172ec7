//! What was decided over several limiters.

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::Options;
use super::part::{Part, PartOutcome};
use crate::denied::Denied;
use crate::error::Error;
use crate::limiter::{Limiter, SharedStore};
use crate::policy::Policy;
use crate::request::permit::Permit;
use crate::request::wait::within;
use crate::status::Status;
use crate::store::WindowStore;

/// The decision of an [`AllOf`](super::AllOf). If it was awaited or made [`now`](super::AllOf::now), no call has failed, apart from calls
/// that never deny.
#[must_use = "a decision may be a denial"]
#[derive(Debug)]
pub struct JointDecision<'a, S: WindowStore = SharedStore> {
    pub(super) parts: SmallVec<[PartDecision<'a, S>; 2]>,
    pub(super) places: SmallVec<[usize; 4]>,
    pub(super) options: Options,
}

/// A call of a [`JointDecision`], or [several on one log](super::AllOf#several-calls-on-one-log), and what came of it.
#[derive(Debug)]
pub struct PartDecision<'a, S> {
    pub(super) part: Part<'a, S>,
    pub(super) outcome: PartOutcome,
}

impl<'a, S: WindowStore> JointDecision<'a, S> {
    /// Returns the outcomes in the order in which the calls were added, once for calls on one log that were made as one operation.
    #[must_use]
    pub fn parts(&self) -> &[PartDecision<'a, S>] {
        &self.parts
    }

    /// Returns the outcome of the call that was added as number `call`, from 0. `None` if there is no such call.
    #[must_use]
    pub fn part(&self, call: usize) -> Option<&PartDecision<'a, S>> {
        self.parts.get(*self.places.get(call)?)
    }

    /// Returns the outcome of the call that was added as number `call`, to [settle](PartDecision::settle) or
    /// [reset](PartDecision::reset) it.
    pub fn part_mut(&mut self, call: usize) -> Option<&mut PartDecision<'a, S>> {
        self.parts.get_mut(*self.places.get(call)?)
    }

    /// Returns `true` if a call denies or failed. Then nothing is charged, except by calls that [keep their charge](Part::keep_charge).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.parts.iter().any(PartDecision::denies)
    }

    /// Returns how long to wait until the same calls fit, if nothing else is charged. `None` if none denies, or if one failed.
    ///
    /// After it, calls on one log that [stay separate](super::AllOf#several-calls-on-one-log) may still deny each other.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let denying = self.parts.iter().filter(|part| part.denies());
        let waits = denying.map(|part| match &part.outcome {
            PartOutcome::Denied(decision) => decision.retry_after(),
            _ => None,
        });
        waits.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// Returns the charges in the order of the calls, to settle or refund them, or the denial with the longest wait, for `?`. Calls
    /// that were made as one operation have one charge.
    pub fn into_result(self) -> Result<Vec<Permit<'a, S>>, Denied> {
        let denied = |part: &PartDecision<'a, S>| match &part.outcome {
            PartOutcome::Denied(denial) if part.denies() => {
                Some(Denied::new(Some(part.limiter().name()), denial.clone()))
            }
            _ => None,
        };
        // The first of equals, like the binding limit.
        let all = self.parts.iter().rev().filter_map(denied);
        match all.max_by_key(Denied::retry_after) {
            Some(longest) => Err(longest),
            None => {
                let permits = self
                    .parts
                    .into_iter()
                    .filter_map(|part| match part.outcome {
                        PartOutcome::Charged(charge) => Permit::of_entry(part.part.target, charge),
                        _ => None,
                    });
                Ok(permits.collect())
            }
        }
    }

    /// Returns the same decision without its borrows, so that it can move into a task.
    pub fn into_owned(self) -> JointDecision<'static, S>
    where
        S: Clone,
    {
        let owned = |made: PartDecision<'a, S>| PartDecision {
            part: made.part.into_owned(),
            outcome: made.outcome,
        };
        JointDecision {
            parts: self.parts.into_iter().map(owned).collect(),
            places: self.places,
            options: self.options,
        }
    }

    /// Refunds all charges except [kept](Part::keep_charge) ones, at the same time. If the store fails, or if the future is dropped,
    /// charges may stay.
    pub async fn refund(&mut self) {
        let timeout = self.options.timeout;
        let parts = self.parts.iter_mut();
        let undone = parts.filter(|made| made.part.is_undone(&made.outcome));
        join_all(undone.map(|made| within(timeout, made.settle(0)))).await;
    }

    /// Returns the decision, or the first error of a call that denies by it.
    pub(super) fn or_error(self) -> Result<Self, Error> {
        let mut denying = self.parts.iter().filter(|part| part.denies());
        match denying.find_map(PartDecision::error) {
            Some(error) => Err(error.clone()),
            None => Ok(self),
        }
    }
}

impl<'a, S> PartDecision<'a, S> {
    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        &self.part.target.limiter
    }

    /// Returns the policy of this call, `None` if it is the limiter's.
    #[must_use]
    pub fn own_policy(&self) -> Option<&Policy> {
        self.part.target.policy.as_deref()
    }

    /// Returns the cost of the call, or the sum of those that were made as one operation.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.part.cost
    }

    /// Returns what came of the call.
    #[must_use]
    pub const fn outcome(&self) -> &PartOutcome {
        &self.outcome
    }

    /// Returns the usage that the store reported last.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match &self.outcome {
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
            PartOutcome::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the charge's permit.
    #[must_use]
    pub fn permit(&self) -> Option<Permit<'a, S>>
    where
        S: Clone,
    {
        match &self.outcome {
            PartOutcome::Charged(charge) => {
                Permit::of_entry(self.part.target.clone(), charge.clone())
            }
            _ => None,
        }
    }

    /// Returns `true` if the outcome denies the whole.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.part.denies(&self.outcome)
    }
}

impl<S: WindowStore> PartDecision<'_, S> {
    /// Replaces the charge's cost; 0 refunds it. Returns `false` if nothing is charged, the entry has expired, or it has no
    /// receipt.
    ///
    /// # Errors
    /// If the store fails. The charge then stays.
    pub async fn settle(&mut self, cost: u64) -> Result<bool, Error> {
        let receipt = match &self.outcome {
            PartOutcome::Charged(charge) => charge.receipt(),
            _ => None,
        };
        let Some(receipt) = receipt else {
            return Ok(false);
        };
        let settled = self.part.target.settle(receipt, cost).await?;
        self.outcome = PartOutcome::Uncharged(settled.status().clone());
        Ok(settled.applied())
    }

    /// Removes the whole log of the key, and reads the usage again. Returns `false` if there was no log.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn reset(&mut self) -> Result<bool, Error> {
        let limiter = self.limiter();
        let key = self.part.target.key.as_ref();
        let removed = limiter.reset(key).await?;
        let status = limiter.status(key).await?;
        self.outcome = PartOutcome::Uncharged(status);
        Ok(removed)
    }
}
