//! Leases that cost more than they gain, and changes of leases.

use std::collections::HashMap;

use limiter_core::{Limit, Limiter, Policy};
use limiter_wrappers::can_lease;

use super::{Rule, RuleSet};

/// The leases of a window from which on a key at its limit admits 98 % of its rate.
const ENOUGH: u64 = 60;

fn policy(rule: &Rule) -> Option<&Policy> {
    rule.limiter().map(Limiter::policy)
}

/// Returns the smallest share of its rate that a key at its limit admits, in per cent, if a limit has a lease.
fn share(policy: &Policy) -> Option<u64> {
    let of_limit = |limit: &Limit| {
        limit.lease()?;
        Some(limit.stated_window().as_micros() * 100 / limit.window().as_micros())
    };
    policy.limits().iter().filter_map(of_limit).min()
}

/// Returns a warning if a rule has a lease that is never used, or is long for its window.
pub(super) fn warning(rule: &Rule) -> Option<String> {
    let policy = policy(rule)?;
    let share = share(policy)?;
    let is_long = |limit: &Limit| {
        let lease = limit.lease().map_or(0, |lease| lease.as_micros() as u64);
        limit.stated_window().as_micros() < ENOUGH * lease
    };
    let problem = if policy.lease().is_none() {
        "the lease is never used: every limit must have one"
    } else if !can_lease(policy) {
        "the lease is never used: the maximum is too small"
    } else if policy.limits().iter().any(is_long) {
        "the lease is long: a window should be at least 60 leases"
    } else {
        return None;
    };
    Some(format!(
        "{}: {}",
        rule.position,
        explained(problem, policy, share)
    ))
}

fn explained(problem: &str, policy: &Policy, share: u64) -> String {
    format!("{problem}. With {policy}, a key at its limit admits {share} % of its rate")
}

impl RuleSet {
    /// Returns a warning for each rule with a lease, in case that the store is in memory and needs none.
    pub(crate) fn leases_in_memory(&self) -> impl Iterator<Item = String> {
        self.list.iter().filter_map(|rule| {
            let policy = policy(rule)?;
            let problem = "the lease is never used: the store is in memory";
            Some(format!(
                "{}: {}",
                rule.position,
                explained(problem, policy, share(policy)?)
            ))
        })
    }

    /// Returns a warning for each rule whose new lease drops entries that it still counts: a window may then exceed its maximum.
    pub(crate) fn changed_leases(&self, before: &Self) -> Vec<String> {
        let rules = before.list.iter();
        let old: HashMap<_, _> = rules
            .map(|rule| ((&rule.domain, &rule.path), rule))
            .collect();
        let changed = self.list.iter().filter_map(|rule| {
            let new = policy(rule)?;
            let old = policy(old.get(&(&rule.domain, &rule.path))?)?;
            let leases = |policy: &Policy| {
                let limits = policy.limits().iter();
                limits.map(Limit::lease).collect::<Vec<_>>()
            };
            let is_safe = leases(new) == leases(old) || new.longest_window() == old.longest_window();
            let text = "a window may exceed its maximum while the change takes effect; change a lease in two steps, as in \
                        \"Introduce, change or remove a lease\" of docs/leases.md";
            (!is_safe).then(|| format!("{}: from {old} to {new}: {text}", rule.position))
        });
        changed.collect()
    }
}
