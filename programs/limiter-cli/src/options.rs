//! Options that commands share.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use limiter_core::{Counting, Limit, Policy};

use crate::usage_error::UsageError;

/// The policy of a command.
#[derive(Args, Debug)]
pub(crate) struct PolicyArgs {
    /// At most MAX units within any WINDOW (units us, ms, s, m, h, d). MAX/WINDOW~RESOLUTION merges entries, and units become
    /// available late, by less than RESOLUTION. MAX/WINDOW+LEASE counts windows longer by LEASE. Several limits with commas, as in 5/1m,100/1h, or several options, are one policy
    #[arg(
        long = "limit",
        value_name = "MAX/WINDOW",
        required = true,
        value_delimiter = ','
    )]
    limits: Vec<Limit>,
    /// Count only admitted acquires, or every attempt
    #[arg(long, alias = "count", default_value = "admitted", value_parser = PossibleValuesParser::new(["admitted", "attempts"])
        .map(|text| if text == "attempts" { Counting::Attempts } else { Counting::Admitted }))]
    counting: Counting,
}

impl PolicyArgs {
    pub(crate) fn policy(&self) -> Result<Policy, UsageError> {
        Ok(policy(&self.limits)?.with_counting(self.counting))
    }
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
