//! Usage in the form of `limiter replay --output jsonl`: of the binding limit, and of every limit. Times are in microseconds.

use std::time::Duration;

use limiter_core::{Decision, LimitStatus, Status};
use serde_json::{Value, json};

pub(super) fn of_decision(decision: &Decision) -> Value {
    let mut out = of_limits(&decision.limits(), decision.binding_index(), decision.reset_after());
    out["retry_after_us"] = json!(decision.retry_after().as_ref().map(Duration::as_micros));
    out["at_us"] = json!(decision.at().as_micros());
    out
}

pub(super) fn of_status(status: &Status) -> Value {
    let mut out = of_limits(&status.limits(), status.binding_index(), status.reset_after());
    out["at_us"] = json!(status.at().as_micros());
    out
}

fn of_limits(limits: &[LimitStatus], binding: usize, reset_after: Duration) -> Value {
    let mut out = limits.get(binding).map_or(json!({}), counts);
    out["limits"] = limits.iter().map(of_limit).collect();
    out["reset_after_us"] = json!(reset_after.as_micros());
    out
}

/// Returns the usage of one limit. `limit` is its maximum, as for the binding limit.
pub(crate) fn of_limit(limit: &LimitStatus) -> Value {
    let mut out = counts(limit);
    out["window_us"] = json!(limit.limit().window().as_micros());
    // `null` if the limit is exact.
    out["resolution_us"] = json!(limit.limit().resolution().as_ref().map(Duration::as_micros));
    out
}

fn counts(limit: &LimitStatus) -> Value {
    json!({
        "limit": limit.limit().max(),
        "used": limit.used(),
        "remaining": limit.remaining(),
        // `null` unless it denies.
        "retry_after_us": limit.retry_after().as_ref().map(Duration::as_micros),
        "refill_after_us": limit.refill_after().as_micros(),
        "reset_after_us": limit.reset_after().as_micros(),
    })
}
