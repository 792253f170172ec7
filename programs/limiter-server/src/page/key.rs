//! The page's data on one key, and unblocking the key.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use futures_util::future::try_join_all;
use limiter_core::{Error, LimitStatus, Limiter, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::changes::Caller;
use crate::http::{Refusal, read};
use crate::object::Object;
use crate::rules::Rule;
use crate::service::Service;

/// The number of steps in which a log is drawn.
const STEPS: u32 = 48;

/// A key of a rule.
#[derive(Debug, Deserialize)]
pub(super) struct Target {
    domain: String,
    path: String,
    key: String,
}

/// Returns the usage of a key, and how it falls if no more units are taken.
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    Query(target): Query<Target>,
) -> Result<Json<Value>, Refusal> {
    let rule = target.rule(&service)?;
    let limiter = limiter(&rule)?;
    let key = &target.key;
    if service
        .rules()
        .overrides(&target.domain)
        .is_some_and(|overrides| overrides.path == rule.path)
    {
        // Each request brings its own limit, so there is none to draw the log against.
        return Ok(Json(json!({ "limits": [] })));
    }
    let now = limiter.status(key).await?;
    let at = now.at();
    let limits = now.limits();
    let shown = try_join_all(limits.iter().enumerate().map(async |(i, limit)| {
        let mut shown = json!(limit);
        shown["text"] = json!(limit.limit().to_string());
        shown["log"] = json!(log(limiter, key, (i, limit), at).await?);
        Ok::<_, Error>(shown)
    }));
    let behind = now.clock_behind().as_micros() as u64;
    Ok(Json(
        json!({ "limits": shown.await?, "clock_behind_us": behind }),
    ))
}

/// A key of any rule.
#[derive(Debug, Deserialize)]
pub(super) struct AnyRule {
    key: String,
}

/// Returns the rules that have counted a key. Asks the store about all at the same time.
pub(super) async fn find(
    State(service): State<Arc<Service>>,
    Query(AnyRule { key }): Query<AnyRule>,
) -> Result<Json<Value>, Refusal> {
    let rules = service.rules();
    let with_limiters = rules
        .iter()
        .filter_map(|rule| Some((rule, rule.limiter()?)));
    let found = try_join_all(with_limiters.map(async |(rule, limiter)| {
        let status = limiter.status(&key).await?;
        let limits = status.limits();
        let used = limits.iter().find(|limit| limit.used() > 0);
        Ok::<_, Error>(used.map(|limit| {
            let used = limit.used();
            let limit = limit.limit().to_string();
            json!({ "domain": rule.domain, "path": rule.path, "used": used, "limit": limit })
        }))
    }));
    let found: Vec<_> = found.await?.into_iter().flatten().collect();
    Ok(Json(json!({ "found": found })))
}

/// Returns the units of each part of the window that ends at `now`, oldest first.
///
/// Every store reports a status at a later time, so the usage there shows which units no longer count by then.
async fn log(
    limiter: &Limiter,
    key: &str,
    (i, limit): (usize, &LimitStatus),
    now: Timestamp,
) -> Result<Vec<u64>, Error> {
    if limit.used() == 0 {
        return Ok(vec![0; STEPS as usize]);
    }
    let window = limit.limit().window().as_duration();
    let later = (1..=STEPS).map(|step| now.saturating_add(window * step / STEPS));
    let used = try_join_all(later.map(async |at| {
        let status = limiter.status(key).at(at).await?;
        Ok::<_, Error>(status.limits().get(i).map_or(0, LimitStatus::used))
    }));
    let left = |before: &mut u64, used: u64| {
        // Units taken in the meantime must not show as negative.
        let now = used.min(*before);
        Some(std::mem::replace(before, now) - now)
    };
    Ok(used.await?.into_iter().scan(limit.used(), left).collect())
}

/// Removes the log of a key.
pub(super) async fn reset(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    let Object(target): Object<Target> = read(body).await?;
    let rule = target.rule(&service)?;
    limiter(&rule)?;
    let key = target.key.as_bytes();
    let removed = rule.reset(key).await?;
    service.denied().forget(&rule, key);
    let text = removed
        .as_ref()
        .map_or_else(String::new, |counts| counts.join(", "));
    caller.log_reset(&rule, key, &text);
    Ok(Json(json!({ "existed": removed.is_some() })))
}

impl Target {
    fn rule(&self, service: &Service) -> Result<Arc<Rule>, Refusal> {
        let rules = service.rules();
        let found = rules
            .with_overrides()
            .find(|rule| rule.domain == self.domain && rule.path == self.path);
        found
            .cloned()
            .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "there is no such rule"))
    }
}

fn limiter(rule: &Rule) -> Result<&Limiter, Refusal> {
    rule.limiter()
        .ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "this rule keeps no counts"))
}
