//! One JSON object per row.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use limiter_core::Decision;
use serde::Serialize;

use crate::replay::{Answer, Observer};
use crate::trace::Row;

/// Writes one JSON object per row, in the order of the trace; times in whole microseconds.
///
/// A key that is not UTF-8 is shown with replacement characters.
#[derive(Debug)]
pub struct JsonLines<W>(pub W);

/// The fields in the order in which they are written.
#[derive(Serialize)]
struct Line<'a> {
    at_us: u64,
    key: Cow<'a, str>,
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    decided: Option<Decided>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

/// A decision, of the binding limit, in the order of the JSON; times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// Whether it fitted every limit.
    pub allowed: bool,
    /// The maximum.
    pub limit: u64,
    /// What counts in the window.
    pub used: u64,
    /// What is left of the maximum.
    pub remaining: u64,
    /// How long to wait, if it was denied.
    pub retry_after_us: Option<u64>,
    /// Until the next unit frees.
    pub refill_after_us: u64,
    /// Until nothing counts any more.
    pub reset_after_us: u64,
}

impl From<&Decision> for Decided {
    fn from(decision: &Decision) -> Self {
        Self {
            allowed: decision.allowed(),
            limit: decision.limit().max(),
            used: decision.used(),
            remaining: decision.remaining(),
            retry_after_us: decision.retry_after().map(micros),
            refill_after_us: micros(decision.refill_after()),
            reset_after_us: micros(decision.reset_after()),
        }
    }
}

impl<W: Write> Observer for JsonLines<W> {
    fn row(&mut self, row: &Row<'_>, answer: &Answer) -> anyhow::Result<()> {
        let (at_us, key, op) = (row.at.as_micros(), String::from_utf8_lossy(row.key), row.action.name());
        let mut line = Line { at_us, key, op, cost: Some(row.cost), decided: None, error: None };
        match answer {
            Answer::Decided(decision) => line.decided = Some(decision.into()),
            Answer::Refused(refusal) => line.error = Some(refusal.name()),
            Answer::Reset => line.cost = None,
        }
        serde_json::to_writer(&mut self.0, &line).map_err(std::io::Error::from)?;
        self.0.write_all(b"\n")?;
        Ok(())
    }
}

/// A length of time in whole microseconds.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
