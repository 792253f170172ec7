//! The decision over several limiters.

use std::time::Duration;

use super::part::{Part, PartOutcome};
use super::{AllOf, into_owned};
use crate::denied::Denied;
use crate::error::Error;
use crate::limiter::SharedStore;
use crate::request::permit::Permit;
use crate::request::wait::within;
use crate::store::WindowStore;

/// The decision of an [`AllOf`](super::AllOf).
#[must_use = "a decision may be a denial"]
#[derive(Debug)]
pub struct JointDecision<'a, S: WindowStore = SharedStore>(pub(super) AllOf<'a, S>);

impl<'a, S: WindowStore> JointDecision<'a, S> {
    /// Returns the calls and their outcomes, in the order in which they were added.
    #[must_use]
    pub fn parts(&self) -> &[Part<'a, S>] {
        &self.0.parts
    }

    /// Returns `true` if a call denies or failed. Then nothing is charged, except by calls that [keep theirs](Part::keep_charge).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.parts().iter().any(Part::denies)
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

    pub(super) fn or_error(mut self) -> Result<Self, Error> {
        let first = take_errors(&mut self).into_iter().next();
        first.map_or(Ok(self), Err)
    }

    /// Returns the charges in the order of the calls, to settle or refund them, or the denial with the longest wait, for `?`.
    ///
    /// An error that middleware has left in a part is not a denial: [take](crate::request::joint::take_errors) it first.
    pub fn into_result(self) -> Result<Vec<Permit<'a, S>>, Denied> {
        let mut permits = Vec::new();
        let mut denials = Vec::new();
        for part in self.0.parts {
            let name = part.limiter().name();
            let denies = part.denies();
            match part.outcome {
                Some(PartOutcome::Charged(charge)) => {
                    permits.extend(Permit::of_entry(part.target, charge, part.id));
                }
                Some(PartOutcome::Denied(denial)) if denies => {
                    denials.push(Denied::by(name, denial));
                }
                _ => {}
            }
        }
        // The first of equals, like the binding limit.
        let longest = denials.into_iter().rev().max_by_key(Denied::retry_after);
        longest.map_or(Ok(permits), Err)
    }
}

/// Returns the same decision without its borrows, so that it can move into a task.
pub fn decision_into_owned<S: WindowStore + Clone>(
    decision: JointDecision<'_, S>,
) -> JointDecision<'static, S> {
    JointDecision(into_owned(decision.0))
}

/// Takes the errors of the calls that deny, in their order.
pub fn take_errors<S: WindowStore>(decision: &mut JointDecision<'_, S>) -> Vec<Error> {
    let denying = decision.0.parts.iter_mut().filter(|part| part.denies());
    let failed = |part: &mut Part<'_, S>| {
        let is_failed = |outcome: &mut PartOutcome| matches!(outcome, PartOutcome::Failed(_));
        match part.outcome.take_if(is_failed)? {
            PartOutcome::Failed(error) => Some(error),
            _ => None,
        }
    };
    denying.filter_map(failed).collect()
}

/// Refunds all charges except [kept](Part::keep_charge) ones. If the store fails, or if the future is dropped, charges may stay.
pub async fn refund<S: WindowStore>(decision: &mut JointDecision<'_, S>) {
    let share = decision.0.share(1);
    let undone = decision.0.parts.iter_mut().filter(|part| part.is_undone());
    for part in undone {
        let _ = within(share, part.settle(0)).await;
    }
}

/// Returns the calls, to [settle](Part::settle) or [reset](Part::reset) them.
pub fn parts_mut<'d, 'a, S: WindowStore>(
    decision: &'d mut JointDecision<'a, S>,
) -> &'d mut [Part<'a, S>] {
    &mut decision.0.parts
}
