//! The command line of `load`.

use clap::{Args, ValueEnum};
use limiter_core::Limit;

use crate::options::{Count, Store};

/// Drives a store as a service would, and reports throughput, latency and errors. Checks from outside that no window of any
/// key admitted more than the limit.
///
/// Each task makes one decision after another. A latency is the time from a call to its answer. Errors are counted, and the
/// load goes on.
///
/// Exit status: 0 when the load ran to its end, 2 for wrong usage, 130 or 143 when interrupted, 1 for any other failure.
#[derive(Args, Debug)]
pub struct Load {
    /// The store: memory, or the URL of a Redis (redis://, rediss://, redis+unix://, redis+cluster://, rediss+cluster://)
    #[arg(long, value_name = "STORE", default_value = "memory", value_parser = Store::parse)]
    pub(super) store: Store,
    /// The prefix of the keys in Redis, for several loads that share their limits. The keys are then kept, until they expire
    /// [default: random, and the keys are removed at the end]
    #[arg(long)]
    pub(super) prefix: Option<String>,
    /// At most MAX units within any WINDOW (units us, ms, s, m, h, d). Repeat it for a policy of several limits
    #[arg(long = "limit", value_name = "MAX/WINDOW", required = true)]
    pub(super) limits: Vec<Limit>,
    /// What an acquire counts: only what was allowed, or every attempt
    #[arg(long, value_enum, default_value_t = Count::Admitted)]
    pub(super) count: Count,
    /// The number of keys
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(super) keys: u32,
    /// How unequal the keys are: the exponent of Zipf's law, 0 for all alike
    #[arg(long, default_value_t = 0.0)]
    pub(super) skew: f64,
    /// The units of each acquire
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) cost: u64,
    /// The number of tasks, each with one decision at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) tasks: u32,
    /// Decisions per second, of all tasks together [default: as many as they can]
    #[arg(long)]
    pub(super) rate: Option<f64>,
    /// How long the load lasts
    #[arg(long, default_value_t = 10.0)]
    pub(super) seconds: f64,
    /// What is around the store: nothing, or the recommended timeout, circuit breaker and denial cache
    #[arg(long, value_enum, default_value_t = Stack::Plain)]
    pub(super) stack: Stack,
    /// What the recommended stack does while the store is away
    #[arg(long, value_enum, default_value_t = Outage::Closed)]
    pub(super) outage: Outage,
    /// A summary for people, or JSON: one object per second, then one of the whole load
    #[arg(long, value_enum, default_value_t = Output::Summary)]
    pub(super) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Summary,
    Jsonl,
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
    /// Returns the error
    Error,
}
