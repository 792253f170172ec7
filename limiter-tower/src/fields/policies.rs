//! The names of limits, and the fields that depend on policies alone.

use http::HeaderValue;
use limiter_core::{Policy, ceil_secs};

use super::list::List;
use crate::decide::{Answer, Ruling};
use crate::rule::Rule;

/// The enforced rules.
pub(super) fn applying<'a>(rules: &'a [Rule], rulings: &'a [Ruling]) -> impl Iterator<Item = (&'a Rule, &'a Ruling)> {
    rules.iter().zip(rulings).filter(|(rule, _)| !rule.shadow)
}

/// What is made once: the fields of rules that apply under their limiters' own policies.
#[derive(Debug)]
pub(crate) struct Policies {
    /// The [`remaining_heads`] of each rule. Shadow rules come last, and are missing.
    pub(super) heads: Vec<Vec<String>>,
    /// `RateLimit-Policy` if all rules apply.
    value: Option<HeaderValue>,
}

impl Policies {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let enforced = || rules.iter().filter(|rule| !rule.shadow);
        let mut list = List::default();
        enforced().for_each(|rule| policy_items(&mut list, rule.limiter_name(), rule.limiter.policy()));
        let heads = enforced().map(|rule| remaining_heads(rule.limiter_name(), rule.limiter.policy()));
        Self { heads: heads.collect(), value: list.value() }
    }

    pub(super) fn value(&self, rules: &[Rule], rulings: &[Ruling]) -> Option<HeaderValue> {
        if applying(rules, rulings).all(|(_, ruling)| ruling.status().is_some() && ruling.charge.policy.is_none()) {
            return self.value.clone();
        }
        let mut list = List::default();
        for (rule, ruling) in applying(rules, rulings).filter(|(_, ruling)| ruling.status().is_some()) {
            policy_items(&mut list, rule.base_name(ruling), rule.policy(ruling));
        }
        list.value()
    }
}

fn policy_items(out: &mut List, base: &str, policy: &Policy) {
    for (name, limit) in quoted_names(base, policy).iter().zip(policy.limits()) {
        out.item(name);
        out.push(b";q=");
        out.number(limit.max());
        out.push(b";w=");
        out.number(ceil_secs(limit.window().as_duration()));
    }
}

/// Returns what the items of `RateLimit` begin with: `"search";r=`.
pub(super) fn remaining_heads(base: &str, policy: &Policy) -> Vec<String> {
    quoted_names(base, policy).into_iter().map(|name| name + ";r=").collect()
}

/// Returns the names of a policy's limits as Strings of a structured field.
fn quoted_names(base: &str, policy: &Policy) -> Vec<String> {
    let quoted = |name: String| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    limit_names(base, policy).map(quoted).collect()
}

/// Returns the names of a policy's limits: `base`, and the window if there are several limits.
fn limit_names(base: &str, policy: &Policy) -> impl Iterator<Item = String> {
    let (base, limits) = (percent_encoded(base), policy.limits());
    limits.iter().map(move |limit| match limits.iter().filter(|other| other.window() == limit.window()).count() {
        _ if limits.len() == 1 => base.clone(),
        1 => format!("{base}-{}", limit.window()),
        _ => format!("{base}-{limit}"),
    })
}

/// Returns the text with all but printable ASCII percent-encoded.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Rule {
    fn limiter_name(&self) -> &str {
        self.limiter.policy().name().unwrap_or(self.limiter.name().as_str())
    }

    pub(super) fn base_name<'a>(&'a self, ruling: &'a Ruling) -> &'a str {
        ruling.charge.policy.as_ref().and_then(|policy| policy.name()).unwrap_or(self.limiter_name())
    }

    fn policy<'a>(&'a self, ruling: &'a Ruling) -> &'a Policy {
        ruling.charge.policy.as_deref().unwrap_or(self.limiter.policy())
    }
}

/// Returns the names of the limits that deny, as clients see them.
pub(crate) fn violated(rules: &[Rule], rulings: &[Ruling]) -> Vec<String> {
    let mut names = Vec::new();
    for (rule, ruling) in applying(rules, rulings) {
        let policy = rule.policy(ruling);
        for (i, (name, limit)) in limit_names(rule.base_name(ruling), policy).zip(policy.limits()).enumerate() {
            let denies = match &ruling.answer {
                Answer::Denied(decision) => decision.limits().get(i).is_some_and(|limit| limit.retry_after().is_some()),
                Answer::CostExceedsLimit => ruling.charge.cost > limit.max(),
                _ => false,
            };
            if denies {
                names.push(name);
            }
        }
    }
    names
}
