//! Usage in the form of `limiter replay --output jsonl`: of the binding limit, and of every limit. Times are in microseconds.

use std::time::Duration;

use limiter_core::{Decision, LimitStatus, Status};
use serde_json::{Value, json};

pub(super) fn of_decision(decision: &Decision) -> Value {
    let mut out = of_limits(&decision.limits(), decision.binding_index(), decision.reset_after());
    out["retry_after_us"] = json!(decision.retry_after().map(micros));
    out["at_us"] = json!(decision.at().as_micros());
    out
}

pub(super) fn of_status(status: &Status) -> Value {
    let mut out = of_limits(&status.limits(), status.binding_index(), status.reset_after());
    out["at_us"] = json!(status.at().as_micros());
    out
}

fn of_limits(limits: &[LimitStatus], binding: usize, reset_after: Duration) -> Value {
    let mut out = limits.get(binding).map_or(json!({}), of_limit);
    let named = |limit: &LimitStatus| {
        let mut named = of_limit(limit);
        named["policy"] = json!(limit.limit().to_string());
        named
    };
    out["limits"] = limits.iter().map(named).collect();
    out["reset_after_us"] = json!(micros(reset_after));
    out
}

fn of_limit(limit: &LimitStatus) -> Value {
    json!({
        "limit": limit.limit().max(),
        "used": limit.used(),
        "remaining": limit.remaining(),
        // `null` unless it denies.
        "retry_after_us": limit.retry_after().map(micros),
        "refill_after_us": micros(limit.refill_after()),
        "reset_after_us": micros(limit.reset_after()),
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
