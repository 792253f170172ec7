//! The whole API: acquire, record, peek, status, settle, refund and renew of one descriptor.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, StatusCode};
use limiter_core::{
    Counting, Decision, Error, ErrorKind, KeyBuf, LimitStatus, Limiter, MAX_COST, Receipt,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use super::{Http, Refusal, read, receipt, require_json};
use crate::changes::Caller;
use crate::object::{Object, objects, whole};
use crate::rules::{Effect, Match};
use crate::service::{Acquired, Failure, Service};

/// The longest wait.
const MAX_WAIT_MS: u64 = 60_000;

/// The body of a request. Fields that its operation does not have are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiRequest {
    domain: String,
    descriptor: Vec<(String, String)>,
    #[serde(default, deserialize_with = "whole")]
    cost: Option<u64>,
    id: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    wait_ms: Option<u64>,
    receipt: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    Acquire,
    Record,
    Peek,
    Status,
    Settle,
    Refund,
    Renew,
}

/// Answers `POST /v1/{op}`. `docs/v1.md` lists every field of its responses.
pub(super) async fn answer(
    State(http): State<Arc<Http>>,
    op: Result<Path<Op>, PathRejection>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    require_json(&headers)?;
    let Path(op) = op.map_err(|rejection| Refusal::bad(rejection.body_text()))?;
    let Object(request): Object<ApiRequest> = read(body).await?;
    let receipt = request.check(op).map_err(Refusal::bad)?;
    let call = Call {
        op,
        request: &request,
        receipt,
        caller,
    };
    let answer = make(&http.service, &call);
    let answer = http.v1.observe(answer).await;
    answer
        .map(Json)
        .map_err(|failure| Refusal::of(failure, StatusCode::SERVICE_UNAVAILABLE))
}

impl ApiRequest {
    /// Checks that the request has exactly the fields that its operation needs. Returns its receipt.
    fn check(&self, op: Op) -> Result<Option<Receipt>, String> {
        let settles = matches!(op, Op::Settle | Op::Refund | Op::Renew);
        let fields = [
            (
                "cost",
                self.cost.is_some(),
                !matches!(op, Op::Status | Op::Refund | Op::Renew),
            ),
            (
                "id",
                self.id.is_some(),
                matches!(op, Op::Acquire | Op::Record | Op::Renew),
            ),
            ("wait_ms", self.wait_ms.is_some(), op == Op::Acquire),
            ("receipt", self.receipt.is_some(), settles),
        ];
        if let Some((name, ..)) = fields.iter().find(|(_, is_given, may)| *is_given && !may) {
            return Err(format!("{name}: this operation has no such field"));
        }
        if self.domain.is_empty() || self.descriptor.is_empty() {
            return Err("domain and descriptor: expected a domain and at least one pair of a key and a value".into());
        }
        if self.wait_ms.is_some_and(|wait| wait > MAX_WAIT_MS) {
            return Err(format!("wait_ms: expected at most {MAX_WAIT_MS}"));
        }
        if matches!(op, Op::Acquire | Op::Peek) && self.cost == Some(0) {
            return Err("cost: expected at least 1".into());
        }
        if op == Op::Settle && self.cost.is_none() {
            return Err("cost: expected the actual cost".into());
        }
        let receipt = self.receipt.as_deref().and_then(receipt::parse);
        if settles && receipt.is_none() {
            return Err("receipt: expected the receipt of an acquire or a record".into());
        }
        Ok(receipt)
    }

    fn cost(&self) -> u64 {
        self.cost.unwrap_or(1)
    }

    /// Returns the idempotency key. Texts of any length have one.
    fn id(&self) -> Option<u128> {
        Some(digest(self.id.as_ref()?))
    }
}

fn digest(id: &str) -> u128 {
    let digest: [u8; 32] = Sha256::digest(id).into();
    digest
        .first_chunk()
        .map_or(0, |first| u128::from_be_bytes(*first))
}

/// The body of a request about several descriptors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllRequest {
    domain: String,
    #[serde(deserialize_with = "objects")]
    calls: Vec<AllCall>,
    id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllCall {
    descriptor: Vec<(String, String)>,
    #[serde(default, deserialize_with = "whole")]
    cost: Option<u64>,
}

/// Answers `POST /v1/acquire_all`: one decision on all descriptors.
pub(super) async fn acquire_all(
    State(http): State<Arc<Http>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    require_json(&headers)?;
    let Object(request): Object<AllRequest> = read(body).await?;
    if request.domain.is_empty() {
        return Err(Refusal::bad("domain: expected a domain"));
    }
    let is_empty = |call: &AllCall| call.descriptor.is_empty();
    if let Some(i) = request.calls.iter().position(is_empty) {
        return Err(Refusal::bad(format!(
            "calls[{i}].descriptor: expected at least one pair of a key and a value"
        )));
    }
    let calls = request.calls.iter().map(|call| {
        let entries = call.descriptor.iter();
        let entries = entries.map(|(key, value)| (&**key, &**value)).collect();
        (entries, call.cost.unwrap_or(1))
    });
    let calls: Vec<_> = calls.collect();
    let id = request.id.as_deref().map(digest);
    let answer = http.service.acquire_all(&request.domain, &calls, id);
    let answer = http.v1.observe(answer).await;
    let (allowed, acquired) =
        answer.map_err(|failure| Refusal::of(failure, StatusCode::SERVICE_UNAVAILABLE))?;
    let shown = |call: Acquired| {
        let mut out = empty(Op::Acquire);
        out["cost"] = json!(call.cost);
        if let Some(status) = call.status {
            set(&mut out, json!(status));
            let limits = status.limits();
            let wait = limits.iter().filter_map(LimitStatus::retry_after).max();
            out["retry_after_us"] = json!(wait.map(|wait| wait.as_micros() as u64));
        }
        if let Some(rule) = call.rule {
            out["rule"] = json!(rule.path);
            out["key"] = json!(String::from_utf8_lossy(call.key.as_ref()));
        }
        out["allowed"] = json!(call.allowed);
        out["receipt"] = json!(call.receipt.map(receipt::to_text));
        if call.never_fits {
            out["error"] = json!(ErrorKind::CostExceedsLimit.as_str());
        }
        out
    };
    let calls: Vec<_> = acquired.into_iter().map(shown).collect();
    Ok(Json(
        json!({ "op": "acquire_all", "allowed": allowed, "calls": calls }),
    ))
}

/// A request, read and checked.
struct Call<'a> {
    op: Op,
    request: &'a ApiRequest,
    receipt: Option<Receipt>,
    caller: Caller,
}

/// Makes the call. An acquire that waits looks its rule up again before each try, because the rules may be reloaded meanwhile.
async fn make(service: &Service, call: &Call<'_>) -> Result<Value, Failure> {
    let wait = Duration::from_millis(call.request.wait_ms.unwrap_or(0));
    let mut end = Instant::now() + wait;
    loop {
        let reloaded = service.reloaded();
        let pause = match attempt(service, call, end).await? {
            ControlFlow::Break(answer) => return Ok(answer),
            ControlFlow::Continue(pause) => pause,
        };
        // No call is dropped: the store may count it.
        tokio::select! {
            () = sleep(pause) => {}
            () = reloaded => {}
            () = service.stopped().cancelled() => end = Instant::now(),
        }
    }
}

/// Makes the call once, or returns how long to wait until the next attempt, which is not after `end`.
async fn attempt(
    service: &Service,
    call: &Call<'_>,
    end: Instant,
) -> Result<ControlFlow<Value, Duration>, Failure> {
    let Call { op, request, .. } = *call;
    let rules = service.rules();
    let entries: Vec<(&str, &str)> = request
        .descriptor
        .iter()
        .map(|(key, value)| (&**key, &**value))
        .collect();
    let mut out = empty(op);
    if !matches!(op, Op::Status | Op::Refund | Op::Renew) {
        out["cost"] = json!(request.cost());
    }
    let answer = match rules.find(&request.domain, &entries) {
        Some(found) => {
            out["rule"] = json!(found.rule.path);
            out["key"] = json!(String::from_utf8_lossy(found.key.as_ref()));
            ask(service, call, &found, end).await?
        }
        None => {
            let allowed = service.allows_unmatched(&rules, &request.domain);
            let allowed = allowed.map_err(|text| Failure::Invalid(text.to_owned()))?;
            ControlFlow::Break(without_limiter(op, allowed))
        }
    };
    Ok(answer.map_break(|answer| {
        set(&mut out, answer);
        out
    }))
}

/// Returns a response with every field at its empty value.
fn empty(op: Op) -> Value {
    json!({
        "op": op, "rule": null, "key": null, "cost": null, "allowed": null, "error": null, "receipt": null, "applied": null,
        "at_us": null, "limit": null, "used": null, "remaining": null, "retry_after_us": null, "refill_after_us": null,
        "reset_after_us": null, "limits": [],
    })
}

/// Sets these fields.
fn set(out: &mut Value, fields: Value) {
    if let (Value::Object(out), Value::Object(fields)) = (out, fields) {
        out.extend(fields);
    }
}

/// Makes the call with the matching rule once.
async fn ask(
    service: &Service,
    call: &Call<'_>,
    Match {
        rule,
        key,
        detailed,
    }: &Match<'_>,
    end: Instant,
) -> Result<ControlFlow<Value, Duration>, Error> {
    let Call {
        op,
        request,
        receipt,
        ..
    } = *call;
    let cost = request.cost();
    // Shadow mode delays nobody.
    let end = if rule.shadow { Instant::now() } else { end };
    // Returns the client's view.
    let count = |allowed: bool| {
        if op == Op::Acquire {
            rule.counts.add_hits(cost);
            let decision = (allowed, !allowed && !rule.shadow);
            service.count(rule, key, detailed.as_deref(), decision);
        }
        allowed || rule.shadow
    };
    let Some(limiter) = rule.limiter() else {
        let allowed = count(!matches!(rule.effect, Effect::Deny));
        return Ok(ControlFlow::Break(without_limiter(op, allowed)));
    };
    let answer = match (op, receipt) {
        (Op::Renew, Some(receipt)) => {
            let mut renew = limiter.renew(key, receipt);
            if let Some(id) = request.id() {
                renew = renew.idempotency_key(id);
            }
            let renewed = renew.await?;
            let mut out = json!(renewed.status());
            out["applied"] = json!(renewed.applied());
            out["receipt"] = json!(renewed.receipt().map(receipt::to_text));
            out
        }
        (_, Some(receipt)) => {
            let cost = if op == Op::Refund { 0 } else { cost };
            let settled = limiter.settle(key, receipt, cost).await?;
            if let Some(before) = settled.cost_before() {
                let cost = cost.min(MAX_COST);
                call.caller.log_settlement(rule, key.as_ref(), before, cost);
            }
            let mut out = json!(settled.status());
            out["applied"] = json!(settled.applied());
            if op == Op::Settle {
                out["cost"] = json!(cost.min(MAX_COST));
            }
            out
        }
        (Op::Status, _) => json!(limiter.status(key).await?),
        // No work was done.
        (Op::Record, _) if cost == 0 => {
            let mut out = json!(limiter.status(key).await?);
            out["allowed"] = json!(true);
            out
        }
        _ => match decide(op, limiter, key, request, end).await {
            Ok(ControlFlow::Continue(pause)) => return Ok(ControlFlow::Continue(pause)),
            Ok(ControlFlow::Break(decision)) => {
                if op == Op::Acquire && decision.is_allowed() {
                    rule.counts
                        .note_usage(decision.used(), decision.limit().max());
                }
                let mut out = json!(decision);
                out["allowed"] = json!(count(decision.fits()));
                out["receipt"] = json!(decision.receipt().map(receipt::to_text));
                out["cost"] = json!(decision.cost().unwrap_or(cost));
                out
            }
            // No wait helps.
            Err(error) if error.kind() == ErrorKind::CostExceedsLimit => {
                json!({ "allowed": count(false), "error": error.kind().as_str() })
            }
            Err(error) => return Err(error),
        },
    };
    Ok(ControlFlow::Break(answer))
}

/// Returns the fields of a response if nothing counts.
fn without_limiter(op: Op, allowed: bool) -> Value {
    match op {
        Op::Settle | Op::Refund | Op::Renew => json!({ "applied": false }),
        Op::Status => json!({}),
        Op::Acquire | Op::Record | Op::Peek => json!({ "allowed": allowed }),
    }
}

async fn decide(
    op: Op,
    limiter: &Limiter,
    key: &KeyBuf,
    request: &ApiRequest,
    end: Instant,
) -> Result<ControlFlow<Decision, Duration>, Error> {
    let cost = request.cost();
    let peek = limiter.peek(key).cost(cost);
    let decision = match op {
        Op::Peek => peek.await?,
        Op::Record => {
            let record = limiter.record(key).cost(cost);
            match request.id() {
                Some(id) => record.idempotency_key(id).await?,
                None => record.await?,
            }
        }
        _ => {
            let pause = |denied: &Decision| {
                let pause = denied.retry_after();
                pause.filter(|pause| Instant::now() + *pause <= end)
            };
            let looks = limiter.policy().counting() == Counting::Attempts;
            // As in `Acquire::within`: if each acquire counts, a call waits by peeks, and acquires once.
            if looks
                && Instant::now() < end
                && let Some(pause) = pause(&peek.await?)
            {
                return Ok(ControlFlow::Continue(pause));
            }
            let mut acquire = limiter.acquire(key).cost(cost);
            if let Some(id) = request.id() {
                acquire = acquire.idempotency_key(id);
            }
            // Without an exact limit, there are no receipts.
            let decision = match limiter.policy().longest_exact_window() {
                Some(_) => acquire.permit().await?.decision().clone(),
                None => acquire.await?,
            };
            match pause(&decision) {
                Some(pause) if !looks => return Ok(ControlFlow::Continue(pause)),
                _ => decision,
            }
        }
    };
    Ok(ControlFlow::Break(decision))
}
