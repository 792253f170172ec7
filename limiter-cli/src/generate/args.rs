//! The command line of `generate`.

use clap::Args;

/// Writes a made-up trace as CSV: random arrivals, few busy and many quiet keys.
#[derive(Args, Debug)]
pub struct Generate {
    /// How many rows
    #[arg(long, default_value_t = 100_000)]
    pub(super) rows: u64,
    /// From how many keys
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) keys: u64,
    /// Rows per second on average
    #[arg(long, default_value_t = 100.0)]
    pub(super) rate: f64,
    /// How unequal the keys are: the exponent of Zipf's law, 0 for all alike
    #[arg(long, default_value_t = 1.0)]
    pub(super) skew: f64,
    /// The same seed makes the same trace
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}
