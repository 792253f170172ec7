//! The decision over several limiters.

use std::ops::Deref;
use std::time::Duration;

use super::AllOf;
use super::part::{Part, PartOutcome};
use crate::denied::Denied;
use crate::error::Error;
use crate::limiter::SharedStore;
use crate::request::permit::Permit;
use crate::store::WindowStore;

/// The decision of an [`AllOf`], to whose calls it dereferences. No call has failed, apart from calls that never deny.
#[must_use = "a decision may be a denial"]
#[derive(Debug)]
pub struct JointDecision<'a, S: WindowStore = SharedStore>(AllOf<'a, S>);

impl<'a, S: WindowStore> Deref for JointDecision<'a, S> {
    type Target = AllOf<'a, S>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a, S: WindowStore> AllOf<'a, S> {
    /// Returns the calls and their outcomes, in the order in which they were added.
    #[must_use]
    pub fn parts(&self) -> &[Part<'a, S>] {
        &self.parts
    }

    /// Returns `true` if a call denies, failed or was not made. If all were made, then nothing is charged, except by calls that
    /// [keep their charge](Part::keep_charge).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.parts.iter().any(Part::denies)
    }

    /// Returns how long to wait until the same calls fit, if nothing else is charged. `None` if none denies, or if one failed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let denying = self.parts.iter().filter(|part| part.denies());
        let waits = denying.map(|part| match &part.outcome {
            Some(PartOutcome::Denied(decision)) => decision.retry_after(),
            _ => None,
        });
        waits.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// Returns the decision, or the first error of a call that denies by it.
    pub(super) fn or_error(self) -> Result<JointDecision<'a, S>, Error> {
        let mut denying = self.parts.iter().filter(|part| part.denies());
        match denying.find_map(Part::error) {
            Some(error) => Err(error.clone()),
            None => Ok(JointDecision(self)),
        }
    }
}

impl<'a, S: WindowStore> JointDecision<'a, S> {
    /// Returns the charges in the order of the calls, to settle or refund them, or the denial with the longest wait, for `?`.
    pub fn into_result(self) -> Result<Vec<Permit<'a, S>>, Denied> {
        let denied = |part: &Part<'a, S>| match &part.outcome {
            Some(PartOutcome::Denied(denial)) if part.denies() => {
                Some(Denied::by(part.limiter().name(), denial.clone()))
            }
            _ => None,
        };
        // The first of equals, like the binding limit.
        let all = self.parts.iter().rev().filter_map(denied);
        match all.max_by_key(Denied::retry_after) {
            Some(longest) => Err(longest),
            None => Ok(self.parts.iter().filter_map(Part::permit).collect()),
        }
    }
}
