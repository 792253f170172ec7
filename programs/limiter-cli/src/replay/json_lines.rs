//! One JSON object per row.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;

use crate::json::{DecisionFields, write_line};
use crate::pass::RowResult;
use crate::trace::{Action, Row};

/// The fields, in the order in which they are written. Times are in whole microseconds.
#[derive(Serialize)]
struct Line<'a> {
    at_us: u64,
    key: Cow<'a, str>,
    op: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    decided: Option<DecisionFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

/// Writes the result of a row. Replaces bytes of its key that are not UTF-8.
pub(super) fn write(out: &mut impl Write, row: &Row<'_>, result: &RowResult) -> io::Result<()> {
    let at_us = row.at.as_micros();
    let key = String::from_utf8_lossy(row.key);
    let op = row.action;
    let mut line = Line {
        at_us,
        key,
        op,
        cost: Some(row.cost),
        decided: result.fields(),
        error: None,
    };
    match result {
        RowResult::Decided(_) => {}
        RowResult::Refused(kind) => line.error = Some(kind.as_str()),
        RowResult::Reset => line.cost = None,
    }
    write_line(out, &line)
}
