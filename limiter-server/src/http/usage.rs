//! Decisions in the form of `limiter replay --output jsonl`. Times are in microseconds.

use std::time::Duration;

use limiter_core::{Decision, LimitStatus, Status};
use serde::Serialize;

/// The fields of the binding limit, and those of every limit.
#[derive(Debug, Serialize)]
pub(super) struct Usage {
    #[serde(flatten)]
    binding: Fields,
    limits: Vec<LimitUsage>,
}

#[derive(Debug, Serialize)]
struct LimitUsage {
    /// The limit as text.
    policy: String,
    #[serde(flatten)]
    fields: Fields,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Fields {
    limit: u64,
    used: u64,
    remaining: u64,
    /// `null` unless it denies.
    retry_after_us: Option<u64>,
    refill_after_us: u64,
    reset_after_us: u64,
}

impl From<&LimitStatus> for Fields {
    fn from(limit: &LimitStatus) -> Self {
        Self {
            limit: limit.limit().max(),
            used: limit.used(),
            remaining: limit.remaining(),
            retry_after_us: limit.retry_after().map(micros),
            refill_after_us: micros(limit.refill_after()),
            reset_after_us: micros(limit.reset_after()),
        }
    }
}

impl From<&Decision> for Usage {
    fn from(decision: &Decision) -> Self {
        let limits = decision.limits();
        let mut usage = Self::of(&limits, decision.binding_index(), decision.reset_after());
        usage.binding.retry_after_us = decision.retry_after().map(micros);
        usage
    }
}

impl From<&Status> for Usage {
    fn from(status: &Status) -> Self {
        Self::of(&status.limits(), status.binding_index(), status.reset_after())
    }
}

impl Usage {
    fn of(limits: &[LimitStatus], binding: usize, reset_after: Duration) -> Self {
        let usage = |limit: &LimitStatus| LimitUsage { policy: limit.limit().to_string(), fields: limit.into() };
        let limits: Vec<_> = limits.iter().map(usage).collect();
        // A policy has a limit, so the default is never used.
        let fields = limits.get(binding).map(|limit| limit.fields);
        let mut binding = fields.unwrap_or(Fields {
            limit: 0,
            used: 0,
            remaining: 0,
            retry_after_us: None,
            refill_after_us: 0,
            reset_after_us: 0,
        });
        binding.reset_after_us = micros(reset_after);
        Self { binding, limits }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
