//! The results of rows, and the trait that receives them.

use limiter_core::{Decision, Error, ErrorKind};

use crate::trace::{Malformed, Row};

/// The name of the limiter in a replay.
pub const LIMITER_NAME: &str = "replay";

/// The result of a row.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, and a box would cost every row an allocation")]
pub enum RowResult {
    /// The limiter decided.
    Decided(Decision),
    /// The cost is 0 or can never fit. The row changed nothing.
    Refused(Refusal),
    /// The key's log was removed.
    Reset,
}

/// Why a row was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The cost is 0.
    InvalidCost,
    /// The cost is above the maximum of a limit.
    CostExceedsLimit,
}

impl Refusal {
    /// Returns the name in the output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidCost => "invalid_cost",
            Self::CostExceedsLimit => "cost_exceeds_limit",
        }
    }
}

/// Receives every row, in the order of the trace.
pub trait Observer {
    /// Receives a row and its result.
    ///
    /// # Errors
    /// Any error ends the replay.
    fn row(&mut self, row: &Row<'_>, outcome: &RowResult) -> anyhow::Result<()>;

    /// Receives a malformed row that was skipped.
    fn skipped(&mut self, malformed: Malformed) {
        drop(malformed);
    }

    /// Reports periodically how many bytes and rows of the trace have been read.
    fn progress(&mut self, bytes: u64, rows: u64) {
        let _ = (bytes, rows);
    }
}

impl RowResult {
    #[inline]
    pub(crate) fn from_result(result: Result<Decision, Error>) -> Result<Self, Error> {
        match result {
            Ok(decision) => Ok(Self::Decided(decision)),
            Err(error) => match error.kind() {
                ErrorKind::InvalidCost => Ok(Self::Refused(Refusal::InvalidCost)),
                ErrorKind::CostExceedsLimit => Ok(Self::Refused(Refusal::CostExceedsLimit)),
                _ => Err(error),
            },
        }
    }
}
