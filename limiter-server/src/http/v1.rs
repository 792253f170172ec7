//! The whole API: acquire, record, peek, settle, refund and status of one descriptor.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use http::StatusCode;
use limiter_core::{Decision, EntryId, Error, ErrorKind, KeyBuf, Limiter, Receipt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::usage::Usage;
use super::{Http, Refusal, read, receipt};
use crate::rules::{Effect, Match};
use crate::service::{Failure, Outcome};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Acquire,
    Record,
    Peek,
    Status,
    Settle,
    Refund,
}

/// The answer to a call, in the form of `limiter replay --output jsonl`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Reply {
    #[serde(skip_serializing_if = "Option::is_none")]
    at_us: Option<u64>,
    /// The rule; `null` if none matches, so that nothing is limited.
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    op: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    /// Of an acquire, a record and a peek.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<bool>,
    /// Of a settlement and a refund.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

/// Answers `POST /v1/{op}`.
pub(super) async fn answer(
    State(http): State<Arc<Http>>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json<Reply>, Refusal> {
    let op = match &*name {
        "acquire" => Op::Acquire,
        "record" => Op::Record,
        "peek" => Op::Peek,
        "status" => Op::Status,
        "settle" => Op::Settle,
        "refund" => Op::Refund,
        _ => {
            let text = "expected acquire, record, peek, status, settle or refund";
            return Err(Refusal::new(StatusCode::NOT_FOUND, text));
        }
    };
    let call: Call = read(body).await?;
    let receipt = call.check(op)?;
    let reply = http.v1.observe(async { reply(&http, op, &call, receipt).await.map_err(Failure::from) }).await;
    let reply = reply.map_err(|failure| match failure {
        Failure::Invalid(text) => Refusal::bad(text),
        Failure::Store(error) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error),
    })?;
    Ok(Json(Reply { op: name, ..reply }))
}

impl Call {
    /// Checks that the call has what its operation needs, and nothing else. Returns its receipt.
    fn check(&self, op: Op) -> Result<Option<Receipt>, Refusal> {
        let settles = matches!(op, Op::Settle | Op::Refund);
        let fields = [
            ("cost", self.cost.is_some(), !matches!(op, Op::Status | Op::Refund)),
            ("id", self.id.is_some(), matches!(op, Op::Acquire | Op::Record)),
            ("wait_ms", self.wait_ms.is_some(), op == Op::Acquire),
            ("receipt", self.receipt.is_some(), settles),
        ];
        if let Some((name, ..)) = fields.iter().find(|(_, is_given, may)| *is_given && !may) {
            return Err(Refusal::bad(format!("{name}: this operation has no such field")));
        }
        if self.domain.is_empty() || self.descriptor.is_empty() {
            return Err(Refusal::bad(
                "domain and descriptor: expected a domain and at least one pair of a key and a value",
            ));
        }
        if self.wait_ms.is_some_and(|wait| wait > MAX_WAIT_MS) {
            return Err(Refusal::bad(format!("wait_ms: expected at most {MAX_WAIT_MS}")));
        }
        if op == Op::Settle && self.cost.is_none() {
            return Err(Refusal::bad("cost: expected the actual cost"));
        }
        let receipt = self.receipt.as_deref().map(receipt::parse);
        match receipt {
            Some(None) => Err(Refusal::bad("receipt: expected the receipt of an acquire or a record")),
            None if settles => Err(Refusal::bad("receipt: expected the receipt of an acquire or a record")),
            receipt => Ok(receipt.flatten()),
        }
    }

    /// Returns the idempotency key. Texts of any length have one.
    fn id(&self) -> Option<EntryId> {
        let digest = Sha256::digest(self.id.as_ref()?);
        Some(EntryId::from(<[u8; 16]>::try_from(digest.get(..16)?).ok()?))
    }
}

async fn reply(http: &Http, op: Op, call: &Call, receipt: Option<Receipt>) -> Result<Reply, Error> {
    let rules = http.service.rules();
    let entries: Vec<(&str, &str)> = call.descriptor.iter().map(|(key, value)| (&**key, &**value)).collect();
    let found = rules.find(&call.domain, &entries);
    let settles = receipt.is_some();
    let cost = (op != Op::Status).then(|| if op == Op::Refund { 0 } else { call.cost.unwrap_or(1) });
    let mut reply = Reply { cost: cost.filter(|_| op != Op::Refund), ..Reply::default() };
    let Some(found) = found else {
        reply.set_verdict(op, true);
        return Ok(reply);
    };
    reply.rule = Some(found.rule.path.clone());
    let limiter = match &found.rule.effect {
        Effect::Limit(limiter) => limiter,
        effect => {
            let allowed = found.rule.shadow || !matches!(effect, Effect::Deny);
            if op == Op::Acquire {
                count(http, &found, !matches!(effect, Effect::Deny));
            }
            reply.set_verdict(op, allowed);
            return Ok(reply);
        }
    };
    reply.key = Some(String::from_utf8_lossy(found.key.as_ref()).into_owned());
    if let Some(receipt) = receipt {
        let settled = limiter.settle(&found.key, receipt, cost.unwrap_or(0)).await?;
        reply.at_us = Some(settled.status().at().as_micros());
        reply.applied = Some(settled.applied());
        reply.usage = Some(settled.status().into());
        return Ok(reply);
    }
    debug_assert!(!settles);
    if op == Op::Status {
        let status = limiter.status(&found.key).await?;
        (reply.at_us, reply.usage) = (Some(status.at().as_micros()), Some((&status).into()));
        return Ok(reply);
    }
    match decide(op, limiter, &found.key, call, cost.unwrap_or(1)).await {
        Ok(decision) => {
            if op == Op::Acquire {
                count(http, &found, decision.allowed());
            }
            reply.at_us = Some(decision.at().as_micros());
            reply.allowed = Some(decision.allowed() || found.rule.shadow);
            reply.receipt = decision.receipt().map(receipt::to_text);
            reply.usage = Some((&decision).into());
        }
        Err(error) if error.kind() == ErrorKind::CostExceedsLimit => {
            if op == Op::Acquire {
                count(http, &found, false);
            }
            reply.allowed = Some(found.rule.shadow);
            reply.error = Some(error.kind().as_str());
        }
        Err(error) => return Err(error),
    }
    Ok(reply)
}

impl Reply {
    /// Sets the verdict of a rule without a limiter.
    fn set_verdict(&mut self, op: Op, allowed: bool) {
        match op {
            Op::Settle | Op::Refund => self.applied = Some(false),
            Op::Status => {}
            Op::Acquire | Op::Record | Op::Peek => self.allowed = Some(allowed),
        }
    }
}

async fn decide(op: Op, limiter: &Limiter, key: &KeyBuf, call: &Call, cost: u64) -> Result<Decision, Error> {
    match op {
        Op::Peek => limiter.peek(key).cost(cost).await,
        Op::Record => {
            let record = limiter.record(key).cost(cost);
            if let Some(id) = call.id() { record.id(id).await } else { record.await }
        }
        _ => {
            let wait = Duration::from_millis(call.wait_ms.unwrap_or(0));
            let acquire = limiter.acquire(key).cost(cost);
            let acquire = if let Some(id) = call.id() { acquire.id(id) } else { acquire };
            // A permit has a receipt under every policy.
            Ok(match acquire.within(wait).permit().await? {
                Ok(permit) => permit.decision().clone(),
                Err(denied) => denied.into_decision(),
            })
        }
    }
}

fn count(http: &Http, found: &Match<'_>, allowed: bool) {
    let outcome = match allowed {
        true => Outcome::Allowed,
        false if found.rule.shadow => Outcome::ShadowDenied,
        false => Outcome::Denied,
    };
    http.service.count(found.rule, &found.key, found.detailed.as_deref(), outcome);
}
