//! One JSON object per row.

use std::borrow::Cow;
use std::io::Write;

use serde::Serialize;

use super::row_result::{Observer, RowResult};
use crate::json::DecisionFields;
use crate::trace::Row;

/// Writes one JSON object per row, in the order of the trace. Times are in whole microseconds.
///
/// Replaces bytes of a key that are not UTF-8.
#[derive(Debug)]
pub struct JsonLines<W>(pub W);

/// The fields, in the order in which they are written.
#[derive(Serialize)]
struct Line<'a> {
    at_us: u64,
    key: Cow<'a, str>,
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    decided: Option<DecisionFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

impl<W: Write> Observer for JsonLines<W> {
    fn row(&mut self, row: &Row<'_>, result: &RowResult) -> anyhow::Result<()> {
        let (at_us, key, op) = (row.at.as_micros(), String::from_utf8_lossy(row.key), row.action.name());
        let mut line = Line { at_us, key, op, cost: Some(row.cost), decided: None, error: None };
        match result {
            RowResult::Decided(decision) => line.decided = Some(decision.into()),
            RowResult::Refused(refusal) => line.error = Some(refusal.name()),
            RowResult::Reset => line.cost = None,
        }
        serde_json::to_writer(&mut self.0, &line).map_err(std::io::Error::from)?;
        self.0.write_all(b"\n")?;
        Ok(())
    }
}
