//! Runs the rows of a trace through a limiter.

use std::io::Read;

use anyhow::Context;
use limiter_core::{Decision, Error, ErrorKind, Limiter, NowStore};

use crate::trace::{Action, Malformed, Row, Trace, TraceError};

/// The name of the limiter that a trace is replayed through.
pub const NAME: &str = "replay";

/// What became of a row.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, and a box would cost every row an allocation")]
pub enum Answer {
    /// The limiter decided on it.
    Decided(Decision),
    /// The cost is 0 or can never fit. Nothing was recorded.
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
    /// Receives a row and what became of it.
    ///
    /// # Errors
    /// Any error ends the replay.
    fn row(&mut self, row: &Row<'_>, answer: &Answer) -> anyhow::Result<()>;

    /// Receives a malformed row that is skipped.
    fn skipped(&mut self, malformed: Malformed) {
        drop(malformed);
    }

    /// Reports from time to time how many bytes and rows of the trace have been read.
    fn progress(&mut self, bytes: u64, rows: u64) {
        let _ = (bytes, rows);
    }
}

/// Runs every row of a trace in order, at the row's own time.
///
/// # Errors
/// A [`TraceError`] for a malformed row, unless `skip_invalid` is set, and for a failed read; any error of the observer.
pub fn replay<R: Read, S: NowStore>(
    trace: &mut Trace<R>,
    limiter: &Limiter<S>,
    skip_invalid: bool,
    observer: &mut impl Observer,
) -> anyhow::Result<()> {
    const PROGRESS: u64 = 1 << 14;
    let mut rows = 0_u64;
    loop {
        match trace.next() {
            None => return Ok(()),
            Some(Ok(row)) => {
                let answer =
                    answer(&row, limiter).with_context(|| format!("deciding on row {} of the trace", rows + 1))?;
                observer.row(&row, &answer)?;
            }
            Some(Err(TraceError::Malformed(malformed))) if skip_invalid && malformed.skippable => {
                observer.skipped(malformed);
            }
            Some(Err(error)) => return Err(error.into()),
        }
        rows += 1;
        if rows.is_multiple_of(PROGRESS) {
            observer.progress(trace.bytes_read(), rows);
        }
    }
}

#[inline]
fn answer<S: NowStore>(row: &Row<'_>, limiter: &Limiter<S>) -> Result<Answer, Error> {
    Answer::from_result(match row.action {
        Action::Acquire => limiter.acquire(row.key).cost(row.cost).at(row.at).now(),
        Action::Peek => limiter.peek(row.key).cost(row.cost).at(row.at).now(),
        Action::Record => limiter.record(row.key).cost(row.cost).at(row.at).now(),
        Action::Reset => {
            limiter.reset(row.key).now();
            return Ok(Answer::Reset);
        }
    })
}

impl Answer {
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
