//! Replays through an in-memory store.

use std::io::Read;

use anyhow::Context;
use limiter_core::{Error, Limiter, NowStore};

use super::row_result::{Observer, RowResult};
use crate::trace::{Action, Row, Trace, TraceError};

/// Runs every row of a trace in order, at the time of the row.
///
/// # Errors
/// A [`TraceError`] for a failed read, and for a malformed row if `skip_invalid` is `false`. Any error of the
/// observer.
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
                let result =
                    run_row(&row, limiter).with_context(|| format!("deciding on row {} of the trace", rows + 1))?;
                observer.row(&row, &result)?;
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
fn run_row<S: NowStore>(row: &Row<'_>, limiter: &Limiter<S>) -> Result<RowResult, Error> {
    RowResult::from_result(match row.action {
        Action::Acquire => limiter.acquire(row.key).cost(row.cost).at(row.at).now(),
        Action::Peek => limiter.peek(row.key).cost(row.cost).at(row.at).now(),
        Action::Record => limiter.record(row.key).cost(row.cost).at(row.at).now(),
        Action::Reset => {
            limiter.reset(row.key).now();
            return Ok(RowResult::Reset);
        }
    })
}
