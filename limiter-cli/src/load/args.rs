//! The command-line arguments of `load`.

use clap::{Args, ValueEnum};

use crate::options::{Output, PolicyArgs};
use crate::redis::parse_url;

/// Drives a store as a service would, and reports throughput, latency and errors. Checks from the outside that no
/// window of any key admits more than the limit.
///
/// Each task makes one decision at a time. A latency is the time from a call to its answer. Errors are counted, and
/// the load continues.
///
/// Exit status: 0 if the load ran to its end, 2 for wrong usage, 130 or 143 if interrupted, 1 for any other failure.
#[derive(Args, Debug)]
pub struct Load {
    /// The store: memory, or the URL of Redis (redis://, rediss://, redis+unix://, redis+cluster://,
    /// rediss+cluster://, redis+sentinel://, rediss+sentinel://)
    #[arg(long, value_name = "STORE", default_value = "memory", value_parser = Store::parse)]
    pub(super) store: Store,
    /// The key prefix in Redis, for several loads that share their limits. Keys with this prefix stay until they
    /// expire [default: random, and the keys are removed at the end]
    #[arg(long)]
    pub(super) prefix: Option<String>,
    #[command(flatten)]
    pub(super) policy: PolicyArgs,
    /// The number of keys
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(super) keys: u32,
    /// The skew of the keys: the exponent of Zipf's law; 0 is uniform
    #[arg(long, default_value_t = 0.0)]
    pub(super) skew: f64,
    /// The cost of each acquire
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) cost: u64,
    /// The number of tasks, each with one decision at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) tasks: u32,
    /// Decisions per second, of all tasks together [default: unlimited]
    #[arg(long)]
    pub(super) rate: Option<f64>,
    /// The duration of the load
    #[arg(long, default_value_t = 10.0)]
    pub(super) seconds: f64,
    /// The wrappers around the store: none, or the recommended timeout, circuit breaker and denial cache
    #[arg(long, value_enum, default_value_t = Stack::Plain)]
    pub(super) stack: Stack,
    /// What the recommended stack does during an outage of the store
    #[arg(long, value_enum, default_value_t = Outage::Closed)]
    pub(super) outage: Outage,
    /// A text summary, or JSON: one object per second, then one for the whole load
    #[arg(long, value_enum, default_value_t = Output::Summary)]
    pub(super) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Stack {
    Plain,
    Recommended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Outage {
    /// Admits every request
    Open,
    /// Denies every request
    Closed,
    /// Limits in memory, and merges afterwards
    Fallback,
    /// Returns the error
    Error,
}

/// Where the logs are stored.
#[derive(Clone, Debug)]
pub(super) enum Store {
    Memory,
    Redis(String),
}

impl Store {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        parse_url(text).map(Self::Redis).map_err(|expected| format!("expected memory, or {expected}"))
    }
}
