//! The decision over several limiters.

use std::ops::Deref;
use std::time::Duration;

use super::AllOf;
use super::part::{Part, PartOutcome};
use crate::denied::Denied;
use crate::error::Error;
use crate::limiter::SharedStore;
use crate::request::permit::Permit;
use crate::request::wait::within;
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

/// Refunds all charges except [kept](Part::keep_charge) ones. If the store fails, or if the future is dropped, charges may stay.
pub async fn refund<S: WindowStore>(calls: &mut AllOf<'_, S>) {
    let share = calls.share(1);
    let undone = calls.parts.iter_mut().filter(|part| part.is_undone());
    for part in undone {
        let _ = within(share, part.settle(0)).await;
    }
}

/// Returns the calls, to [settle](Part::settle) or [reset](Part::reset) them.
pub fn parts_mut<'c, 'a, S: WindowStore>(calls: &'c mut AllOf<'a, S>) -> &'c mut [Part<'a, S>] {
    &mut calls.parts
}
