//! The command `generate`: writes a random trace, for trying out the program or measuring it.

use std::io::{self, BufWriter, Write};

use anyhow::Context;
use clap::Args;
use limiter_core::Timestamp;
use rand::SeedableRng;
use rand_distr::{Distribution, Exp, Zipf};
use rand_pcg::Pcg64Mcg;

use crate::message::OUTPUT;
use crate::usage_error::UsageError;

/// Writes a random trace as CSV: Poisson arrivals, with a few busy keys and many quiet ones
#[derive(Args, Debug)]
pub struct Generate {
    /// The number of rows
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// The number of keys
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// The average number of rows per second
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// The skew of the keys: the exponent of Zipf's law; 0 is uniform
    #[arg(long, default_value_t = 1.0)]
    skew: f64,
    /// The random seed; the same seed gives the same trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the command. The trace has the columns `at` and `key`. It begins on 1 January 2026.
///
/// # Errors
/// [`UsageError`] for arguments out of range. If writing the output fails.
pub fn run(args: &Generate) -> anyhow::Result<()> {
    const START: f64 = 1_767_225_600e6;
    let keys = Zipf::new(args.keys as f64, args.skew).map_err(|_| {
        UsageError(format!(
            "expected a skew of at least 0, found {}",
            args.skew
        ))
    })?;
    if !(args.rate.is_finite() && args.rate > 0.0) {
        return Err(UsageError(format!("expected a rate above 0, found {}", args.rate)).into());
    }
    let gaps = Exp::new(args.rate / 1e6)?;
    let mut random = Pcg64Mcg::seed_from_u64(args.seed);
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut elapsed = 0.0;
    writeln!(out, "at,key").context(OUTPUT)?;
    for _ in 0..args.rows {
        elapsed += gaps.sample(&mut random);
        let at = Timestamp::from_micros((START + elapsed) as u64)
            .map_err(|error| UsageError(format!("expected fewer rows or a higher rate: {error}")))?
            .as_micros();
        let key = keys.sample(&mut random) as u64;
        writeln!(out, "{}.{:06},client-{key}", at / 1_000_000, at % 1_000_000).context(OUTPUT)?;
    }
    out.flush().context(OUTPUT)
}
