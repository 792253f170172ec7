//! The page's data on one key, and unblocking the key.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use futures_util::future::try_join_all;
use limiter_core::{Error, LimitStatus, Limiter, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::http::{Refusal, read};
use crate::rules::Rule;
use crate::service::Service;

/// The number of steps in which a log is drawn.
const STEPS: u32 = 48;
/// The number of rules that a search without a rule tries.
const MAX_TRIED: usize = 10_000;
/// The number of rules that a search tries together.
const TRIED_AT_ONCE: usize = 64;

/// How long a search pauses after each batch, because a store in memory never waits, and decisions come first.
const PAUSE: Duration = Duration::from_millis(1);
/// One search runs at a time.
static SEARCH: Semaphore = Semaphore::const_new(1);

/// A key of a rule.
#[derive(Debug, Deserialize)]
pub(super) struct Target {
    domain: String,
    path: String,
    key: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Search {
    key: String,
}

/// Returns the usage of a key, and how it falls if no more units are taken.
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    Query(target): Query<Target>,
) -> Result<Json<Value>, Refusal> {
    let rule = target.rule(&service)?;
    let (limiter, key) = (limiter(&rule)?, &target.key);
    if service.rules().overrides(&target.domain).is_some_and(|overrides| overrides.path == rule.path) {
        // Each request brings its own limit, so there is none to draw the log against.
        return Ok(Json(json!({ "limits": [] })));
    }
    let now = limiter.status(key).await?;
    let (at, limits) = (now.at(), now.limits());
    let shown = try_join_all(limits.iter().enumerate().map(async |(i, limit)| {
        let mut shown = json!(limit);
        shown["text"] = json!(limit.limit().to_string());
        shown["log"] = json!(log(limiter, key, (i, limit), at).await?);
        Ok::<_, Error>(shown)
    }));
    Ok(Json(json!({ "limits": shown.await? })))
}

/// Returns the units of each part of the window that ends at `now`, oldest first.
///
/// Every store reports a status at a later time, so the usage there shows which units have left the window by then.
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
        // Units that are taken meanwhile must not show as negative.
        let now = used.min(*before);
        Some(std::mem::replace(before, now) - now)
    };
    Ok(used.await?.into_iter().scan(limit.used(), left).collect())
}

/// Returns the rules whose logs have entries for a key.
pub(super) async fn find(
    State(service): State<Arc<Service>>,
    Query(Search { key }): Query<Search>,
) -> Result<Json<Vec<Value>>, Refusal> {
    let _alone = SEARCH.acquire().await;
    let rules: Vec<Arc<Rule>> = service.rules().iter().take(MAX_TRIED).cloned().collect();
    let mut found = Vec::new();
    for rules in rules.chunks(TRIED_AT_ONCE) {
        found.extend(try_join_all(rules.iter().map(|rule| matching(rule, &key))).await?.into_iter().flatten());
        sleep(PAUSE).await;
    }
    Ok(Json(found))
}

async fn matching(rule: &Rule, key: &str) -> Result<Option<Value>, Error> {
    let Ok(limiter) = limiter(rule) else { return Ok(None) };
    let status = limiter.status(key).await?;
    let (used, limit) = (status.used(), status.limit().to_string());
    let shown = || json!({ "domain": rule.domain, "path": rule.path, "key": key, "used": used, "limit": limit });
    Ok((used > 0).then(shown))
}

/// Removes the log of a key.
pub(super) async fn reset(State(service): State<Arc<Service>>, body: Body) -> Result<Json<Value>, Refusal> {
    let target: Target = read(body).await?;
    let rule = target.rule(&service)?;
    limiter(&rule)?;
    let existed = rule.reset(target.key.as_bytes()).await?;
    service.denied().forget(&rule, target.key.as_bytes());
    Ok(Json(json!({ "existed": existed })))
}

impl Target {
    fn rule(&self, service: &Service) -> Result<Arc<Rule>, Refusal> {
        let rules = service.rules();
        let found = rules.with_overrides().find(|rule| rule.domain == self.domain && rule.path == self.path);
        found.cloned().ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "there is no such rule"))
    }
}

fn limiter(rule: &Rule) -> Result<&Limiter, Refusal> {
    rule.limiter().ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "this rule counts nothing"))
}
