//! Replays through a store in memory.

use std::io::Read;

use anyhow::Context;
use limiter_core::{Error, Limiter, NowStore};

use super::outcome::{Observer, Outcome};
use crate::trace::{Action, Row, Trace, TraceError};

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
                let outcome =
                    outcome(&row, limiter).with_context(|| format!("deciding on row {} of the trace", rows + 1))?;
                observer.row(&row, &outcome)?;
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
fn outcome<S: NowStore>(row: &Row<'_>, limiter: &Limiter<S>) -> Result<Outcome, Error> {
    Outcome::from_result(match row.action {
        Action::Acquire => limiter.acquire(row.key).cost(row.cost).at(row.at).now(),
        Action::Peek => limiter.peek(row.key).cost(row.cost).at(row.at).now(),
        Action::Record => limiter.record(row.key).cost(row.cost).at(row.at).now(),
        Action::Reset => {
            limiter.reset(row.key).now();
            return Ok(Outcome::Reset);
        }
    })
}
