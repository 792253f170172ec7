//! The outcomes of a layer's rules for a request.

use std::time::Duration;

use http::StatusCode;
use limiter_core::SharedStore;
use limiter_core::request::{AllOf, Part};
use smallvec::SmallVec;

use crate::head::RequestHead;
use crate::rule::{Charge, MissingKey, Rule};

/// The outcome of each rule for a request, in the order of the rules. Up to two are stored inline.
#[derive(Default)]
pub(crate) struct Rulings<'a> {
    applied: SmallVec<[Applied; 2]>,
    /// One call for each rule that applies.
    pub(crate) together: AllOf<'a>,
    /// Whether the request is refused without asking a limiter.
    refused: bool,
}

/// How one rule applies to one request.
pub(crate) enum Applied {
    Skipped,
    /// The request has no key.
    Rejected(StatusCode),
    /// The limiter is asked, unless the request is refused without asking any.
    Called,
}

impl<'a> Rulings<'a> {
    /// Finds a request's keys and charges.
    pub(crate) fn new(
        rules: &'a [Rule],
        head: &RequestHead<'_>,
        is_refundable: bool,
        timeout: Duration,
    ) -> Self {
        let together = AllOf::new().timeout(timeout);
        let together = if is_refundable {
            together.refundable()
        } else {
            together
        };
        let mut rulings = Self {
            together,
            ..Self::default()
        };
        for rule in rules {
            let applied = match call(rule, head) {
                Ok(part) => {
                    rulings.together.push(part);
                    Applied::Called
                }
                Err(applied) => applied,
            };
            rulings.refused |= !rule.shadow && matches!(applied, Applied::Rejected(_));
            rulings.applied.push(applied);
        }
        rulings
    }

    /// Whether the request is refused without asking a limiter.
    pub(crate) const fn is_refused(&self) -> bool {
        self.refused
    }

    pub(crate) fn into_owned(self) -> Rulings<'static> {
        let Self {
            applied,
            together,
            refused,
        } = self;
        Rulings {
            applied,
            together: together.into_owned(),
            refused,
        }
    }

    /// Returns how each rule applies, and its call.
    pub(crate) fn iter(
        &self,
    ) -> impl Iterator<Item = (&Applied, Option<&Part<'a, SharedStore>>)> + Clone {
        let mut parts = self.together.parts().iter();
        self.applied.iter().map(move |applied| match applied {
            Applied::Called => (applied, parts.next()),
            Applied::Skipped | Applied::Rejected(_) => (applied, None),
        })
    }

    /// Returns the calls with their rules.
    pub(crate) fn parts<'r>(
        &'r self,
        rules: &'r [Rule],
    ) -> impl Iterator<Item = (&'r Rule, &'r Part<'a, SharedStore>)> {
        rules
            .iter()
            .zip(self.iter())
            .filter_map(|(rule, (_, part))| Some((rule, part?)))
    }

    /// Returns the calls with their rules, to settle them.
    pub(crate) fn parts_mut<'r>(
        &'r mut self,
        rules: &'r [Rule],
    ) -> impl Iterator<Item = (&'r Rule, &'r mut Part<'a, SharedStore>)> {
        let called = rules
            .iter()
            .zip(&self.applied)
            .filter(|(_, applied)| matches!(applied, Applied::Called));
        called.map(|(rule, _)| rule).zip(self.together.parts_mut())
    }

    /// Whether an enforced rule refuses the request.
    pub(crate) fn refuses(&self) -> bool {
        self.refused || self.together.is_denied()
    }
}

/// Returns a rule's call, or why there is none.
#[inline]
fn call<'a>(rule: &'a Rule, head: &RequestHead<'_>) -> Result<Part<'a, SharedStore>, Applied> {
    if rule.exempt.as_ref().is_some_and(|exempt| exempt(head)) {
        return Err(Applied::Skipped);
    }
    let key = rule.key.key(head).ok_or(match rule.missing_key {
        MissingKey::Reject(status) => Applied::Rejected(status),
        MissingKey::Skip => Applied::Skipped,
    })?;
    let charge = rule
        .charge
        .as_ref()
        .map_or(Charge::units(1), |charge| charge(head));
    let mut part: Part<'_, _> = match charge.cost {
        0 => rule.limiter.status(&key).into(),
        cost => rule.limiter.acquire(&key).cost(cost).into(),
    };
    if let Some(policy) = charge.policy {
        part = part.under(policy);
    }
    part.set_keep_charge(rule.keep_charge);
    Ok(if rule.shadow { part.advisory() } else { part })
}
