//! The outcomes of the rules of a layer for a request.

use std::mem;

use http::StatusCode;
use limiter_core::request::{Part, Together};
use limiter_core::{Error, KeyBuf, SharedStore};
use smallvec::SmallVec;

use crate::head::RequestHead;
use crate::rule::{Charge, Charging, LookUp, MissingKey, Rule};

/// The outcome of each rule for a request, in the order of the rules. Up to two are stored inline.
#[derive(Default)]
pub(crate) struct Rulings<'a> {
    pub(crate) applied: SmallVec<[Applied; 2]>,
    /// One call for each rule whose limiter is asked.
    pub(crate) together: Together<'a>,
    /// Whether the request is refused without asking a limiter.
    pub(crate) refused: bool,
}

/// How one rule applies to one request.
#[derive(Default)]
pub(crate) enum Applied {
    #[default]
    Skipped,
    /// The request has no key.
    Rejected(StatusCode),
    LookingUp(KeyBuf, LookUp),
    Charged(KeyBuf, Charge),
    /// The look-up of the charge failed, and whether the layer fails closed.
    Failed(Error, bool),
    /// The limiter is asked.
    Asked,
}

impl<'a> Rulings<'a> {
    /// Finds the keys and charges of a request.
    pub(crate) fn new(rules: &[Rule], head: &RequestHead<'_>) -> Self {
        let applied: SmallVec<_> = rules.iter().map(|rule| apply(rule, head)).collect();
        let rejects = |(rule, applied): (&Rule, &Applied)| !rule.shadow && matches!(applied, Applied::Rejected(_));
        let refused = rules.iter().zip(&applied).any(rejects);
        Self { applied, together: Together::new(), refused }
    }

    /// Whether charges are to be looked up before limiters are asked.
    pub(crate) fn must_look_up(&self) -> bool {
        !self.refused && self.applied.iter().any(|applied| matches!(applied, Applied::LookingUp(..)))
    }

    /// Whether there are limiters to be [asked](Self::ask).
    pub(crate) fn is_unasked(&self) -> bool {
        let is_unasked = |applied: &Applied| matches!(applied, Applied::LookingUp(..) | Applied::Charged(..));
        !self.refused && self.applied.iter().any(is_unasked)
    }

    /// Adds the calls. A request that is refused already asks no limiter.
    pub(crate) fn ask(&mut self, rules: &'a [Rule]) {
        if self.refused {
            return;
        }
        for (rule, applied) in rules.iter().zip(&mut self.applied) {
            if let Applied::Charged(key, charge) = applied {
                self.together.push(call(rule, key, charge));
                *applied = Applied::Asked;
            }
        }
    }

    pub(crate) fn into_owned(self) -> Rulings<'static> {
        let Self { applied, together, refused } = self;
        Rulings { applied, together: together.into_owned(), refused }
    }

    /// Returns how each rule applies, and its call if its limiter was asked.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Applied, Option<&Part<'a, SharedStore>>)> + Clone {
        let mut parts = self.together.parts().iter();
        self.applied.iter().map(move |applied| match applied {
            Applied::Asked => (applied, parts.next()),
            _ => (applied, None),
        })
    }

    /// Returns the calls with their rules.
    pub(crate) fn parts<'r>(
        &'r self,
        rules: &'r [Rule],
    ) -> impl Iterator<Item = (&'r Rule, &'r Part<'a, SharedStore>)> {
        rules.iter().zip(self.iter()).filter_map(|(rule, (_, part))| Some((rule, part?)))
    }

    /// Returns the calls with their rules, to settle them.
    pub(crate) fn parts_mut<'r>(
        &'r mut self,
        rules: &'r [Rule],
    ) -> impl Iterator<Item = (&'r Rule, &'r mut Part<'a, SharedStore>)> {
        let asked = rules.iter().zip(&self.applied).filter(|(_, applied)| matches!(applied, Applied::Asked));
        asked.map(|(rule, _)| rule).zip(self.together.parts_mut())
    }

    /// Whether an enforced rule refuses the request.
    pub(crate) fn refuses(&self) -> bool {
        self.refused || self.together.is_denied()
    }

    /// Takes the first error for which the request is refused.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let closed = self.applied.iter_mut().find(|applied| matches!(applied, Applied::Failed(_, true)));
        match closed.map(mem::take) {
            Some(Applied::Failed(error, _)) => Some(error),
            _ => self.together.take_error(),
        }
    }
}

#[inline]
fn apply(rule: &Rule, head: &RequestHead<'_>) -> Applied {
    if rule.exempt.as_ref().is_some_and(|exempt| exempt(head)) {
        return Applied::Skipped;
    }
    let key = match (rule.key.key(head), &rule.missing_key) {
        (Some(key), _) => key,
        (None, MissingKey::Share(key)) => key.clone(),
        (None, MissingKey::Reject(status)) => return Applied::Rejected(*status),
        (None, MissingKey::Skip) => return Applied::Skipped,
    };
    match &rule.charging {
        Charging::Unit => Applied::Charged(key, Charge::units(1)),
        Charging::AtOnce(charge) => Applied::Charged(key, charge(head)),
        Charging::LookUp(look_up) => Applied::LookingUp(key, look_up(head)),
    }
}

#[inline]
fn call<'a>(rule: &'a Rule, key: &KeyBuf, charge: &mut Charge) -> Part<'a, SharedStore> {
    let mut part: Part<'_, _> = match charge.cost {
        0 => rule.limiter.status(key).into(),
        cost => rule.limiter.acquire(key).cost(cost).into(),
    };
    if let Some(policy) = charge.policy.take() {
        part = part.under(policy);
    }
    part.set_keep_charge(rule.keep_charge);
    if rule.shadow { part.advisory() } else { part }
}
