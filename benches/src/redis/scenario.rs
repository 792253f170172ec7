//! The scenarios of decisions in Redis.

use std::sync::LazyLock;

use anyhow::Result;
use limiter_core::{Counting, Limit, Policy};
use serde::Deserialize;

use crate::declared::{Declared, parse};

pub(crate) static REDIS: LazyLock<Declared<Scenario>> =
    LazyLock::new(|| parse(include_str!("../../scenarios/redis.json")));

/// Decisions with known answers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// The workload, as the table describes it.
    pub(crate) about: String,
    /// The contestants. Ratios compare the first with each of the others.
    pub(crate) who: Vec<String>,
    limits: Vec<Limit>,
    #[serde(default)]
    counting: Counting,
    #[serde(default)]
    pub(crate) measure: Measure,
    /// What the calls are. Default: acquires of the limiter's policy.
    #[serde(default)]
    pub(crate) call: Call,
    #[serde(default = "one")]
    pub(crate) keys: usize,
    /// The closest limit of algorithms that spread it evenly. Default: the first limit.
    rate: Option<Limit>,
    #[serde(default = "one")]
    pub(crate) cost: u64,
    #[serde(default)]
    pub(crate) denied: bool,
    #[serde(default)]
    pub(crate) before: Before,
    /// Whether logs are cut to the entries that they had before each turn.
    #[serde(default)]
    pub(crate) restore: bool,
    /// The server's `zset-max-listpack-entries`. Default: Redis' own.
    #[serde(default = "listpack")]
    pub(crate) listpack: u64,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    /// The server's time for a decision.
    #[default]
    Decision,
    /// The bytes of one key.
    Bytes,
    /// The server's time for the settlement of an entry that precedes this many units.
    Settlement,
    /// The server's time for the renewal of the oldest of this many entries, in turn.
    Renewal,
    /// The longest append after a number of entries that may merge, with this history.
    WorstAppend(History),
}

/// A call of this library.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    #[default]
    Acquire,
    Record,
    /// An acquire with its own idempotency key.
    Id,
    /// An acquire under this policy, beside the limiter's policy.
    Own(Box<Policy>),
    /// An acquire of each of this many limiters, together.
    Joint(u8),
}

/// How the entries of a log came about.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum History {
    /// They belong to permits.
    Permits,
    /// They have idempotency keys.
    Ids,
    /// A policy without a resolution appended them.
    Exact,
}

/// The earlier use of a key.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Before {
    /// None.
    #[default]
    Nothing,
    /// This many recent units, each an entry.
    Units(u64),
    /// One unit in each of this many equal parts of the window, for three windows. The oldest unit of the last window
    /// has just expired.
    Expired(u64),
    /// The same, but no unit of the last window has expired.
    Steady(u64),
    /// The window is as long as this many entries take at the speed of the turn. The turn starts with a full window.
    Sliding(u64),
}

fn one<N: From<u8>>() -> N {
    1.into()
}

fn listpack() -> u64 {
    128
}

impl Scenario {
    pub(crate) fn policy(&self) -> Result<Policy> {
        Ok(Policy::new(self.limits.iter().copied())?.with_counting(self.counting))
    }

    /// Returns a burst, and the seconds in which it refills.
    pub(crate) fn rate(&self) -> (u64, u64) {
        let limit = self.rate.unwrap_or(self.limits[0]);
        (limit.max(), limit.window().as_micros() / 1_000_000)
    }
}
