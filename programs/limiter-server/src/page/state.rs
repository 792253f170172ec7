//! The page's data on all rules.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::response::IntoResponse;
use limiter_core::{Counting, Limit, Limiter, Name, Policy};
use serde_json::{Value, json};

use super::About;
use crate::denied::{DeniedKey, KEPT};
use crate::http::Refusal;
use crate::rules::Rule;
use crate::service::Service;

/// The number of denied keys that the page lists.
const DENIED: usize = 100;

pub(super) async fn state(
    State(service): State<Arc<Service>>,
    about: About,
) -> Result<impl IntoResponse, Refusal> {
    let state = move |service: &Service| whole(service, about).to_string();
    Ok(super::json(service.render(state).await?))
}

fn whole(service: &Service, about: About) -> Value {
    let rules = service.rules();
    // The denied keys of removed rules are of no use.
    let current: HashSet<_> = rules
        .with_overrides()
        .map(|rule| Arc::as_ptr(&rule.counts))
        .collect();
    let denied = service.denied().latest(KEPT.get()).into_iter();
    let denied = denied.filter(|denied| current.contains(&Arc::as_ptr(&denied.rule.counts)));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "up_ms": about.started.elapsed().as_millis(),
        "store": {
            "kind": about.store,
            "away": service.store().is_away(),
            "nodes_away": service.store().nodes_away().iter().map(|node| &**node).collect::<Vec<_>>(),
            "evicting": service.store().evicting().iter().map(|(server, policy)| format!("{server}: {policy}")).collect::<Vec<_>>(),
            "outage": about.outage.name(),
        },
        "error": service.errors().map(|errors| errors.to_string()),
        "warnings": service.warnings(),
        "rules": self::rules(service),
        "denied": denied
            .take(DENIED)
            .map(|denied| shown_denied(&denied)).collect::<Vec<_>>(),
    })
}

/// Returns all rules with their limits and counts.
pub(crate) fn rules(service: &Service) -> Vec<Value> {
    let held = service.store().held_in_blocks();
    service
        .rules()
        .iter()
        .map(|rule| shown(rule, &held))
        .collect()
}

fn shown(rule: &Rule, held: &HashMap<Name, u64>) -> Value {
    let policy = rule.limiter().map(Limiter::policy);
    json!({
        "domain": rule.domain,
        "path": rule.path,
        "name": rule.name,
        "where": rule.place(),
        "effect": rule.effect.name(),
        "shadow": rule.shadow,
        "quota": rule.quota,
        "attempts": policy.is_some_and(|policy| policy.counting() == Counting::Attempts),
        "limits": policy.map_or(&[][..], Policy::limits).iter().map(Limit::to_string).collect::<Vec<_>>(),
        "held_in_blocks": rule.limiter().and_then(|limiter| held.get(&limiter.name())).unwrap_or(&0),
        "allowed": rule.counts.allowed.load(Relaxed),
        "denied": rule.counts.denied.load(Relaxed),
        "shadow_denied": rule.counts.shadow_denied.load(Relaxed),
    })
}

fn shown_denied(denied: &DeniedKey) -> Value {
    json!({
        "domain": denied.rule.domain,
        "path": denied.rule.path,
        "key": String::from_utf8_lossy(&denied.key),
        "times": denied.times,
        "ago_ms": denied.last.elapsed().as_millis(),
    })
}
