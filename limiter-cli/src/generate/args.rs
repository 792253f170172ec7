//! The command line of `generate`.

use clap::Args;

/// Writes a random trace as CSV: Poisson arrivals, with a few busy keys and many quiet ones
#[derive(Args, Debug)]
pub struct Generate {
    /// The number of rows
    #[arg(long, default_value_t = 100_000)]
    pub(super) rows: u64,
    /// The number of keys
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) keys: u64,
    /// The average number of rows per second
    #[arg(long, default_value_t = 100.0)]
    pub(super) rate: f64,
    /// The skew of the keys: the exponent of Zipf's law; 0 is uniform
    #[arg(long, default_value_t = 1.0)]
    pub(super) skew: f64,
    /// The random seed; the same seed gives the same trace
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}
