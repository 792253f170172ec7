//! The whole API: acquire, record, peek, status, settle and refund of one descriptor.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use http::StatusCode;
use limiter_core::{Decision, EntryId, Error, ErrorKind, KeyBuf, Limiter, Receipt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Http, Refusal, read, receipt, usage};
use crate::rules::{Effect, Match};
use crate::service::Outcome;

/// The longest wait.
const MAX_WAIT_MS: u64 = 60_000;

/// A call. Fields that its operation does not have are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    domain: String,
    descriptor: Vec<(String, String)>,
    cost: Option<u64>,
    id: Option<String>,
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
}

/// Answers `POST /v1/{op}`, in the form of `limiter replay --output jsonl`.
pub(super) async fn answer(
    State(http): State<Arc<Http>>,
    Path(op): Path<Op>,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    let call: Call = read(body).await?;
    let receipt = call.check(op).map_err(Refusal::bad)?;
    let answer = http.v1.observe(async { Ok(make(&http, op, &call, receipt).await?) }).await;
    answer.map(Json).map_err(|failure| Refusal::of(failure, StatusCode::SERVICE_UNAVAILABLE))
}

impl Call {
    /// Checks that the call has what its operation needs, and nothing else. Returns its receipt.
    fn check(&self, op: Op) -> Result<Option<Receipt>, String> {
        let settles = matches!(op, Op::Settle | Op::Refund);
        let fields = [
            ("cost", self.cost.is_some(), !matches!(op, Op::Status | Op::Refund)),
            ("id", self.id.is_some(), matches!(op, Op::Acquire | Op::Record)),
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
        if op == Op::Settle && self.cost.is_none() {
            return Err("cost: expected the actual cost".into());
        }
        let receipt = self.receipt.as_deref().and_then(receipt::parse);
        if settles && receipt.is_none() {
            return Err("receipt: expected the receipt of an acquire or a record".into());
        }
        Ok(receipt)
    }

    /// Returns the idempotency key. Texts of any length have one.
    fn id(&self) -> Option<EntryId> {
        let digest = Sha256::digest(self.id.as_ref()?);
        Some(EntryId::from(<[u8; 16]>::try_from(digest.get(..16)?).ok()?))
    }
}

async fn make(http: &Http, op: Op, call: &Call, receipt: Option<Receipt>) -> Result<Value, Error> {
    let rules = http.service.rules();
    let entries: Vec<(&str, &str)> = call.descriptor.iter().map(|(key, value)| (&**key, &**value)).collect();
    let found = rules.find(&call.domain, &entries);
    let cost = call.cost.unwrap_or(u64::from(op != Op::Refund));
    let Some(Match { rule, key, .. }) = &found else {
        return Ok(without_limiter(op, true, json!({ "op": op, "rule": null })));
    };
    let mut known = json!({ "op": op, "rule": rule.path, "key": String::from_utf8_lossy(key.as_ref()) });
    let count = |allowed| {
        let outcome = match allowed {
            true => Outcome::Allowed,
            false if rule.shadow => Outcome::ShadowDenied,
            false => Outcome::Denied,
        };
        let detailed = found.as_ref().and_then(|found| found.detailed.as_deref());
        if op == Op::Acquire {
            http.service.count(rule, key, detailed, outcome);
        }
    };
    let Some(limiter) = rule.limiter() else {
        let allowed = !matches!(rule.effect, Effect::Deny);
        count(allowed);
        return Ok(without_limiter(op, allowed || rule.shadow, known));
    };
    let mut out = match (op, receipt) {
        (_, Some(receipt)) => {
            let settled = limiter.settle(key, receipt, cost).await?;
            let mut out = usage::of_status(settled.status());
            out["applied"] = json!(settled.applied());
            out
        }
        (Op::Status, _) => usage::of_status(&limiter.status(key).await?),
        _ => match decide(op, limiter, key, call, cost).await {
            Ok(decision) => {
                count(decision.allowed());
                let mut out = usage::of_decision(&decision);
                out["allowed"] = json!(decision.allowed() || rule.shadow);
                out["receipt"] = json!(decision.receipt().map(receipt::to_text));
                out
            }
            // No wait helps.
            Err(error) if error.kind() == ErrorKind::CostExceedsLimit => {
                count(false);
                json!({ "allowed": rule.shadow, "error": error.kind().as_str() })
            }
            Err(error) => return Err(error),
        },
    };
    if !matches!(op, Op::Status | Op::Refund) {
        out["cost"] = json!(cost);
    }
    for name in ["op", "rule", "key"] {
        out[name] = known[name].take();
    }
    Ok(out)
}

/// Returns the answer of a rule that counts nothing, or without a rule.
fn without_limiter(op: Op, allowed: bool, mut known: Value) -> Value {
    match op {
        Op::Settle | Op::Refund => known["applied"] = json!(false),
        Op::Status => {}
        Op::Acquire | Op::Record | Op::Peek => known["allowed"] = json!(allowed),
    }
    known
}

async fn decide(op: Op, limiter: &Limiter, key: &KeyBuf, call: &Call, cost: u64) -> Result<Decision, Error> {
    match op {
        Op::Peek => limiter.peek(key).cost(cost).await,
        Op::Record => {
            let record = limiter.record(key).cost(cost);
            if let Some(id) = call.id() { record.id(id).await } else { record.await }
        }
        _ => {
            let acquire = limiter.acquire(key).cost(cost);
            let acquire = if let Some(id) = call.id() { acquire.id(id) } else { acquire };
            let acquire = acquire.within(Duration::from_millis(call.wait_ms.unwrap_or(0)));
            // A permit has a receipt under every policy.
            Ok(match acquire.permit().await? {
                Ok(permit) => permit.decision().clone(),
                Err(denied) => denied.into_decision(),
            })
        }
    }
}
