//! The names of limits, and the other parts of the fields that depend on policies alone.

use std::borrow::Cow;

use http::HeaderValue;
use limiter_core::internal::percent_encode;
use limiter_core::request::{PartDecision, PartOutcome};
use limiter_core::{Decision, JointDecision, Limit, Policy, WindowStore, ceil_secs};

use super::list::List;
use crate::rule::Rule;
use crate::rulings::Decided;

/// The names of a policy's limits in header fields, made once for many responses.
#[derive(Clone, Debug)]
pub struct FieldNames {
    limiter: String,
    names: Vec<String>,
    /// The beginnings of the items of `RateLimit`: `"search";r=`.
    pub(super) heads: Vec<String>,
    /// The items of `RateLimit-Policy`: `"search";q=5;w=10`.
    pub(super) quotas: Vec<String>,
}

impl FieldNames {
    /// Returns the names of the limits of `policy`. `limiter` is the limiter's name for clients.
    ///
    /// A limit is called like its limiter and its policy, and by its window if there are several.
    #[must_use]
    pub fn new(limiter: &str, policy: &Policy) -> Self {
        let limits = policy.limits();
        let mut base = percent_encoded(limiter);
        if let Some(policy) = policy.name() {
            base = base + "-" + &percent_encoded(policy);
        }
        let name = |limit: &Limit| match limits
            .iter()
            .filter(|other| other.stated_window() == limit.stated_window())
            .count()
        {
            _ if limits.len() == 1 => base.clone(),
            1 => format!("{base}-{}", limit.stated_window()),
            _ => format!("{base}-{limit}"),
        };
        let names: Vec<String> = limits.iter().map(name).collect();
        // As Strings of a structured field.
        let quoted =
            |name: &String| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let heads = names.iter().map(|name| quoted(name) + ";r=").collect();
        let quotas = names.iter().zip(limits).map(|(name, limit)| {
            let max = limit.max().min(List::MAX_INTEGER);
            let window = ceil_secs(limit.stated_window().as_duration());
            format!("{};q={max};w={window}", quoted(name))
        });
        Self {
            limiter: limiter.to_owned(),
            heads,
            quotas: quotas.collect(),
            names,
        }
    }

    /// Returns the calls of a decision, each with the names for its policy.
    pub(crate) fn of_calls<'c, 'a, S: WindowStore>(
        all: &'c JointDecision<'a, S>,
    ) -> Vec<(Self, &'c PartDecision<'a, S>)> {
        let names = |part: &PartDecision<'_, S>| {
            let limiter = part.limiter();
            let policy = part.own_policy().unwrap_or(limiter.policy());
            Self::new(limiter.name().as_str(), policy)
        };
        all.parts().iter().map(|part| (names(part), part)).collect()
    }

    /// Returns these names, unless the call has a policy of another name.
    pub(super) fn for_call<S>(&self, part: &PartDecision<'_, S>) -> Cow<'_, Self> {
        let other = part
            .own_policy()
            .map(|policy| Self::new(&self.limiter, policy));
        other.map_or(Cow::Borrowed(self), Cow::Owned)
    }

    /// Returns the names of the limits that deny, as clients see them.
    pub(crate) fn denying(&self, decision: &Decision) -> Vec<String> {
        let limits = decision.limits();
        let denying = self
            .names
            .iter()
            .zip(limits.iter())
            .filter(|(_, limit)| limit.retry_after().is_some());
        denying.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn violated_by<S>(&self, part: &PartDecision<'_, S>) -> Vec<String> {
        match part.outcome() {
            PartOutcome::Denied(decision) => self.denying(decision),
            PartOutcome::Failed(_) => {
                let limits = part
                    .own_policy()
                    .unwrap_or(part.limiter().policy())
                    .limits();
                let exceeded = self
                    .names
                    .iter()
                    .zip(limits)
                    .filter(|(_, limit)| part.cost() > limit.max());
                exceeded.map(|(name, _)| name.clone()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the text with all but printable ASCII percent-encoded.
fn percent_encoded(text: &str) -> String {
    percent_encode(text.as_bytes(), |byte| matches!(byte, b' '..=b'~'))
}

/// The names of a layer's rules, computed once.
#[derive(Debug)]
pub(crate) struct Policies {
    /// The names for each limiter's own policy.
    pub(super) names: Vec<FieldNames>,
    /// `RateLimit-Policy` if all enforced rules apply with these policies.
    pub(super) value: Option<HeaderValue>,
}

impl Policies {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let names: Vec<_> = rules
            .iter()
            .map(|rule| FieldNames::new(rule.limiter.name().as_str(), rule.limiter.policy()))
            .collect();
        let enforced = rules.iter().zip(&names).filter(|(rule, _)| !rule.shadow);
        let value = List::of(enforced.flat_map(|(_, names)| &names.quotas));
        Self { names, value }
    }

    /// Returns the names of the limits that deny a request, as clients see them.
    pub(crate) fn violated(&self, rules: &[Rule], rulings: &Decided<'_>) -> Vec<String> {
        let asked = rules.iter().zip(&self.names).zip(rulings.iter());
        let denying = asked.filter_map(|((_, names), (_, part))| {
            Some((names, part.filter(|part| part.denies())?))
        });
        denying
            .flat_map(|(names, part)| names.for_call(part).violated_by(part))
            .collect()
    }
}
