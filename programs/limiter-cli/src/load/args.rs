//! The command-line arguments of `load`.

use clap::{Args, ValueEnum};

use crate::options::PolicyArgs;
use crate::store::{StoreUrl, UrlParser};

/// Calls a store as a service would, and prints throughput, latencies and errors as JSON. Checks from the outside that
/// no window of any key admits more than the limit.
///
/// Each task makes one decision at a time. A latency is the time from a call to its result. Errors are counted, and
/// the load continues. Its limiter has its own name. At the end or after Ctrl-C, it removes the admitted keys.
///
/// Exit status: 0 if the load ran to its end, 2 for a usage error, 130 if interrupted, 1 for any other failure.
#[derive(Args, Debug)]
pub struct Load {
    /// The URL of a Postgres database, postgres://, or of a Redis server or cluster: redis://, rediss://, redis+unix://,
    /// redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel:// [default: a store in memory]
    #[arg(long, value_name = "URL", env = "LIMITER_STORE", hide_env_values = true, value_parser = UrlParser)]
    pub(super) store: Option<StoreUrl>,
    #[command(flatten)]
    pub(super) policy: PolicyArgs,
    /// The number of keys, called in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(super) keys: u32,
    /// The number of tasks, each with one decision at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) tasks: u32,
    /// Decisions per second, over all tasks [default: unlimited]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rate: Option<u32>,
    /// The duration of the load
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) seconds: u32,
    /// Puts the recommended wrappers around the store (timeout, circuit breaker, denial cache), with this behaviour
    /// during an outage [default: no wrappers]
    #[arg(long, value_enum, requires = "store")]
    pub(super) on_outage: Option<Outage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Outage {
    /// Admits every request
    Open,
    /// Denies every request
    Closed,
    /// Limits in memory, and carries its charges over afterwards
    Fallback,
    /// Returns the error
    Error,
}
