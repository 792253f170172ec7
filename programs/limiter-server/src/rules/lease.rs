//! Leases that cost more than they gain, and changes of limits that lose entries.

use std::collections::HashMap;
use std::time::Duration;

use limiter_core::{Counting, Limit, Limiter, Policy};
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

    /// Returns a warning for each rule whose change lets a window exceed its maximum, because entries are lost that the new limits count.
    /// `shares` is `true` if other servers may use the store: those that have the old limits drop these entries.
    pub(crate) fn risky_changes(&self, before: &Self, shares: bool) -> Vec<String> {
        let rules = before.list.iter();
        let old: HashMap<_, _> = rules
            .map(|rule| ((&rule.domain, &rule.path), rule))
            .collect();
        let changed = self.list.iter().filter_map(|rule| {
            let new = policy(rule)?;
            let old = policy(old.get(&(&rule.domain, &rule.path))?)?;
            let text = if leases(new) != leases(old) && new.longest_window() != old.longest_window() {
                "while the change takes effect; change a lease in two steps, as in \"Introduce, change or remove a lease\" of docs/leases.md"
            } else if shares && counts_more(new, old) {
                "until all servers have the change; make it in two steps, as in \"Lengthen a window\" of docs/operations.md"
            } else {
                return None;
            };
            let (position, [_, path]) = (&rule.position, rule.on_a_line());
            Some(format!("{position}: {path}: from {old} to {new}: a window may exceed its maximum {text}"))
        });
        changed.collect()
    }
}

fn leases(policy: &Policy) -> Vec<Duration> {
    policy.limits().iter().filter_map(Limit::lease).collect()
}

/// Returns `true` if a policy counts entries that appends with the old one drop, unless it also has all limits of the old one.
fn counts_more(new: &Policy, old: &Policy) -> bool {
    let largest = |policy: &Policy| policy.limits().iter().map(Limit::max).max();
    // Where only admitted requests count, an append leaves no more than the smaller maximum.
    let counts_attempts = new.counting() == Counting::Attempts;
    let is_kept = |limit: &Limit| new.limits().contains(limit);
    let is_longer = new.longest_window() > old.longest_window();
    (is_longer || counts_attempts && largest(new) > largest(old))
        && !old.limits().iter().all(is_kept)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use limiter_core::SharedStore;
    use limiter_memory::MemoryStore;

    use super::*;

    #[test]
    fn changes_that_lose_entries_are_warnings() {
        // The limits before and after, and the warnings of a server alone and of one in a fleet.
        let rows = "
            2/1s | 20/1h | none | longer
            2/1s | 2/1s, 20/1h | none | none
            2/1s, 20/1h | 20/1h | none | none
            2/1s, 9/1m | 2/1s, 20/1h | none | longer
            20/1h | 2/1s | none | none
            5/1h | 9/1h | none | none
            5/1h', counting: 'attempts | 9/1h', counting: 'attempts | none | longer
            9/1h', counting: 'attempts | 5/1h', counting: 'attempts | none | none
            100/1m | 100/1m+1s | lease | lease
            100/1m | 100/61s | none | longer
            100/61s | 100/1m+1s | none | none
        ";
        for row in rows.lines().filter(|row| row.contains('|')) {
            let row: Vec<_> = row.trim().split(" | ").collect();
            let store: SharedStore = Arc::new(MemoryStore::new());
            let [old, new] = [row[0], row[1]].map(|limits| {
                let limit = format!("rate_limit: {{policy: '{limits}'}}");
                let text = format!("{{domain: d, descriptors: [{{key: user, {limit}}}]}}");
                RuleSet::parse("f", text.as_bytes(), &store, None).unwrap()
            });
            for (shares, expected) in [(false, row[2]), (true, row[3])] {
                let found = new.risky_changes(&old, shares).join("\n");
                let text = match expected {
                    "lease" => "\"Introduce, change or remove a lease\" of docs/leases.md",
                    "longer" => "\"Lengthen a window\" of docs/operations.md",
                    _ => {
                        assert_eq!(found, "", "{row:?}");
                        continue;
                    }
                };
                let is_expected = found.starts_with("f:1:27: user: from") && found.contains(text);
                assert!(is_expected, "{row:?}: {found}");
            }
        }
    }
}
