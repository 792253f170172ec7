//! The rules as JSON.

use std::sync::atomic::Ordering::Relaxed;

use limiter_core::Counting;
use serde_json::{Value, json};

use crate::rules::{Effect, Rule};
use crate::service::Service;

/// Returns all rules with their limits and counts.
pub(super) fn list(service: &Service) -> Value {
    let rules: Vec<Value> = service.rules().iter().map(|rule| entry(rule)).collect();
    json!({ "store_away": service.store().is_away(), "rules": rules })
}

fn entry(rule: &Rule) -> Value {
    let policy = match &rule.effect {
        Effect::Limit(limiter) => Some(limiter.policy()),
        _ => None,
    };
    let counts = &rule.counts;
    json!({
        "domain": rule.domain,
        "rule": rule.path,
        "name": rule.name,
        "limit": rule.effect.to_string(),
        "counting": policy.map(|policy| if policy.counting() == Counting::Attempts { "attempts" } else { "admitted" }),
        "shadow": rule.shadow,
        "quota": rule.quota,
        "place": rule.place.to_string(),
        "allowed": counts.allowed.load(Relaxed),
        "denied": counts.denied.load(Relaxed),
        "shadow_denied": counts.shadow_denied.load(Relaxed),
    })
}
