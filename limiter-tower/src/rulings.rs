//! A request's calls on the limiters of a layer's rules, and their outcomes.

use http::StatusCode;
use limiter_core::request::{AllOf, Part, PartDecision, Undecided};
use limiter_core::{JointDecision, Permit, SharedStore};
use smallvec::SmallVec;

use crate::head::RequestHead;
use crate::rule::{Charge, MissingKey, Rule};

/// How one rule applies to one request.
#[derive(Clone, Copy)]
pub(crate) enum Applied {
    Skipped,
    /// The request has no key.
    Rejected(StatusCode),
    /// The limiter is asked, unless the request is refused without asking any.
    Called,
}

/// How the rules apply to a request, and its calls: undecided, or their decision.
pub(crate) struct Rulings<C> {
    /// In the order of the rules. Up to two are stored inline.
    applied: SmallVec<[Applied; 2]>,
    /// Whether the request is refused without asking a limiter.
    refused: bool,
    /// One for each rule that applies, none if the request is refused without asking a limiter.
    pub(crate) calls: C,
}

/// The decision on a request.
pub(crate) type Decided<'a> = Rulings<JointDecision<'a>>;

impl<C> Rulings<C> {
    fn with<D>(self, calls: impl FnOnce(C) -> D) -> Rulings<D> {
        Rulings {
            applied: self.applied,
            refused: self.refused,
            calls: calls(self.calls),
        }
    }
}

impl<'a> Rulings<Undecided<'a>> {
    /// Finds a request's keys and charges, and adds them to `calls`.
    pub(crate) fn new(
        mut calls: AllOf<'a>,
        rules: &'a [Rule],
        fails_open: bool,
        head: &RequestHead<'_>,
    ) -> Self {
        let mut applied = SmallVec::new();
        let mut refused = false;
        for rule in rules {
            let part = call(rule, head, fails_open);
            applied.push(part.as_ref().err().copied().unwrap_or(Applied::Called));
            match part {
                Ok(part) => calls = calls.with(part),
                Err(Applied::Rejected(_)) => refused |= !rule.shadow,
                Err(_) => {}
            }
        }
        Self {
            applied,
            refused,
            calls: if refused { AllOf::new() } else { calls }.into(),
        }
    }

    /// Decides if no store has to wait.
    #[allow(
        clippy::result_large_err,
        reason = "both are what the caller continues with"
    )]
    pub(crate) fn try_decide(self) -> Result<Decided<'a>, Self> {
        let Self {
            applied,
            refused,
            calls,
        } = self;
        match calls.try_decide() {
            Ok(calls) => Ok(Rulings {
                applied,
                refused,
                calls,
            }),
            Err(calls) => Err(Self {
                applied,
                refused,
                calls,
            }),
        }
    }

    pub(crate) async fn decide(self) -> Decided<'a> {
        Rulings {
            calls: self.calls.decide().await,
            applied: self.applied,
            refused: self.refused,
        }
    }

    pub(crate) fn into_owned(self) -> Rulings<Undecided<'static>> {
        self.with(Undecided::into_owned)
    }
}

impl<'a> Decided<'a> {
    /// Returns the calls to make after a denial.
    pub(crate) fn again(self) -> Rulings<Undecided<'a>> {
        self.with(JointDecision::again)
    }

    /// Returns the same without its borrows.
    pub(crate) fn into_owned(self) -> Decided<'static> {
        self.with(JointDecision::into_owned)
    }

    /// Returns how each rule applies, and its call.
    pub(crate) fn iter(
        &self,
    ) -> impl Iterator<Item = (&Applied, Option<&PartDecision<'a, SharedStore>>)> + Clone {
        let mut calls = 0..;
        self.applied.iter().map(move |applied| match applied {
            Applied::Called => (applied, calls.next().and_then(|call| self.calls.part(call))),
            Applied::Skipped | Applied::Rejected(_) => (applied, None),
        })
    }

    /// Returns the calls with their rules.
    pub(crate) fn parts<'r>(
        &'r self,
        rules: &'r [Rule],
    ) -> impl Iterator<Item = (&'r Rule, &'r PartDecision<'a, SharedStore>)> {
        let pairs = rules.iter().zip(self.iter());
        pairs.filter_map(|(rule, (_, part))| Some((rule, part?)))
    }

    /// Returns the permits of some rules' charges.
    pub(crate) fn permits(
        &self,
        rules: &[Rule],
        of: impl Fn(&Rule) -> bool,
    ) -> Vec<Permit<'static, SharedStore>> {
        let parts = self.parts(rules).filter(|(rule, _)| of(rule));
        parts
            .filter_map(|(_, part)| Some(part.permit()?.into_owned()))
            .collect()
    }

    /// Whether an enforced rule refuses the request.
    pub(crate) fn refuses(&self) -> bool {
        self.refused || self.calls.is_denied()
    }
}

/// Returns a rule's call, or why there is none.
#[inline]
fn call<'a>(
    rule: &'a Rule,
    head: &RequestHead<'_>,
    fails_open: bool,
) -> Result<Part<'a, SharedStore>, Applied> {
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
        part = part.policy(&policy);
    }
    if rule.keep_charge {
        part = part.keep_charge();
    }
    if rule.shadow {
        part = part.advisory();
    }
    // Its charge changes without those of other rules.
    if rule.settles() || rule.handler_settles {
        part = part.own_entry();
    }
    if fails_open {
        part = part.fail_open();
    }
    Ok(part)
}
