//! Replays through Redis. Rows are sent in batches, and rows of different keys are in flight concurrently.

mod batch;
mod run;

use std::io::Read;

use anyhow::Context;

use super::row_result::Observer;
use crate::trace::{Trace, TraceError};
use batch::Batch;

pub use run::RedisRun;

/// Runs every row of a trace at the time of the row, as [`crate::replay::memory::replay`] does. Rows of the same key
/// run in order. The observer receives all rows in the order of the trace.
///
/// # Errors
/// As [`crate::replay::memory::replay`], and any error of the store. The observer receives the rows before the failed
/// one. Some rows after it may have run.
pub fn replay<R: Read>(
    trace: &mut Trace<R>,
    run: &mut RedisRun,
    skip_invalid: bool,
    observer: &mut impl Observer,
) -> anyhow::Result<()> {
    let mut batch = Batch::default();
    let mut rows = 0_u64;
    loop {
        batch.clear();
        let end = loop {
            if batch.is_full() {
                break None;
            }
            match trace.next() {
                None => break Some(Ok(())),
                Some(Ok(row)) => batch.push(rows + 1, &row),
                Some(Err(TraceError::Malformed(malformed))) if skip_invalid && malformed.skippable => {
                    observer.skipped(malformed);
                }
                Some(Err(error)) => break Some(Err(error.into())),
            }
            rows += 1;
        };
        let (results, failure) = run.decide(&batch);
        for (index, result) in results.iter().enumerate() {
            observer.row(&batch.row(index), result)?;
        }
        if let Some(error) = failure {
            let number = batch.number(results.len());
            return Err(error).with_context(|| format!("deciding on row {number} of the trace"));
        }
        if let Some(end) = end {
            return end;
        }
        observer.progress(trace.bytes_read(), rows);
    }
}
