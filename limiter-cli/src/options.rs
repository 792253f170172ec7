//! Options that several commands share.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use limiter_core::{Counting, Limit, Policy};
use rand_distr::Zipf;

use crate::usage_error::UsageError;

/// The policy of a command.
#[derive(Args, Debug)]
pub(crate) struct PolicyArgs {
    /// At most MAX units within any WINDOW (units us, ms, s, m, h, d). With MAX/WINDOW~RESOLUTION, entries merge, and units free
    /// late by less than RESOLUTION. Repeat it for a policy of several limits
    #[arg(long = "limit", value_name = "MAX/WINDOW", required = true)]
    limits: Vec<Limit>,
    /// What counts: only admitted acquires, or every attempt
    #[arg(long, default_value = "admitted", value_parser = PossibleValuesParser::new(["admitted", "attempts"])
        .map(|text| if text == "attempts" { Counting::Attempts } else { Counting::Admitted }))]
    count: Counting,
}

impl PolicyArgs {
    pub(crate) fn policy(&self) -> Result<Policy, UsageError> {
        Ok(policy(&self.limits)?.with_counting(self.count))
    }
}

/// Returns a number that is above 0.
pub(crate) fn positive(value: f64, what: &str) -> Result<f64, UsageError> {
    let valid = value.is_finite() && value > 0.0;
    valid.then_some(value).ok_or_else(|| UsageError(format!("expected {what} above 0, found {value}")))
}

/// Returns Zipf's law over this many keys.
pub(crate) fn zipf(keys: u64, skew: f64) -> Result<Zipf<f64>, UsageError> {
    Zipf::new(keys as f64, skew).map_err(|_| UsageError(format!("expected a skew of at least 0, found {skew}")))
}

pub(crate) fn policy(limits: &[Limit]) -> Result<Policy, UsageError> {
    Policy::new(limits.iter().copied()).map_err(|error| UsageError(error.to_string()))
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Summary,
    Jsonl,
}
