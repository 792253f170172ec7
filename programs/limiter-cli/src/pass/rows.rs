//! A trace's rows, and their results.

use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use limiter_core::{Decision, Error, ErrorKind, IpBlock, Key, KeyBuf, Limit, Limiter, Window};
use limiter_memory::MemoryStore;

use super::TraceArgs;
use crate::json::DecisionFields;
use crate::message::message;
use crate::trace::{Action, Malformed, Row, Trace, shown};

/// The result of a row.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one exists at a time, and a box would cost every row an allocation"
)]
pub(crate) enum RowResult {
    /// The limiter decided.
    Decided(Decision),
    /// The cost is 0 or can never fit. The row had no effect.
    Refused(ErrorKind),
    /// The key's log was removed.
    Reset,
}

impl RowResult {
    /// Returns the fields of the decision, if there is one.
    pub(crate) fn fields(&self) -> Option<DecisionFields> {
        match self {
            Self::Decided(decision) => Some(decision.into()),
            Self::Refused(_) | Self::Reset => None,
        }
    }
}

/// The rows that were run, and those that were not.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) rows: u64,
    /// Malformed rows.
    pub(crate) skipped: u64,
    first_skipped: Option<Malformed>,
    /// Rows that count more than the shortest window after their own time, because the key has a newer entry.
    late: u64,
    /// The longest such delay.
    delay: Duration,
}

/// Servers log requests when they end, so rows are late by as long as a request took. Longer delays are files in a wrong order.
const LONGEST_DELAY: Duration = Duration::from_secs(600);
/// The late rows that a trace may have, or else a hundredth of its rows. With more, its decisions are no answer.
const MAX_LATE: u64 = 100;

impl Passed {
    /// Reports skipped and late rows.
    ///
    /// # Errors
    /// If there are so many that the result is no answer.
    pub(crate) fn check(&self, name: &str) -> anyhow::Result<()> {
        let Self {
            skipped,
            late,
            delay,
            ..
        } = self;
        if let Some(first) = &self.first_skipped {
            message(format_args!(
                "{name}: skipped {skipped} malformed rows, the first: {first}"
            ));
        }
        anyhow::ensure!(
            *skipped <= self.rows,
            "{name}: more than half of the rows are malformed"
        );
        let text = format!(
            "{name}: {late} rows come more than the shortest window after a newer row of their key, up to {delay:?}, and count at its time"
        );
        anyhow::ensure!(
            *delay <= LONGEST_DELAY || *late <= MAX_LATE.max(self.rows / 100),
            "{text}; give rotated files in order, the oldest first"
        );
        if *late > 0 {
            message(text);
        }
        Ok(())
    }
}

/// Runs every row at the time of the row, and calls `each` with the result. Ends at a malformed row, or skips it.
pub(crate) fn replay<R: Read>(
    args: &TraceArgs,
    trace: &mut Trace<R>,
    limiter: &Limiter<MemoryStore>,
    mut each: impl FnMut(&Row<'_>, &RowResult) -> anyhow::Result<()>,
) -> anyhow::Result<Passed> {
    let shortest = limiter.policy().limits().iter().map(Limit::window).min();
    let shortest = shortest.map_or(0, Window::as_micros);
    let mut number = 0_u64;
    let mut passed = Passed::default();
    while let Some(row) = trace.next() {
        number += 1;
        let malformed = match row {
            Ok(row) => match args.client_prefix.map(|bits| network(row.key, bits)) {
                Some(Err(message)) => Malformed {
                    line: trace.line(),
                    message,
                    skippable: true,
                },
                network => {
                    let network = network.and_then(Result::ok);
                    let key = network.as_ref().map_or(row.key, AsRef::as_ref);
                    let row = Row { key, ..row };
                    let result = run_row(&row, limiter)
                        .with_context(|| format!("deciding on row {number} of the trace"))?;
                    passed.rows += 1;
                    if let RowResult::Decided(decision) = &result {
                        let delay = decision.at().micros_since(row.at);
                        if delay > shortest {
                            passed.late += 1;
                            passed.delay = passed.delay.max(Duration::from_micros(delay));
                        }
                    }
                    each(&row, &result)?;
                    continue;
                }
            },
            Err(error) => error.downcast()?,
        };
        if !(args.skip_invalid && malformed.skippable) {
            return Err(malformed.into());
        }
        passed.skipped += 1;
        passed.first_skipped.get_or_insert(malformed);
    }
    Ok(passed)
}

/// Returns the key of an address's network, or what was expected.
fn network(key: &[u8], bits: u8) -> Result<KeyBuf, String> {
    let text = std::str::from_utf8(key).ok();
    match text.and_then(|text| text.parse().ok()) {
        Some(address) => Ok(IpBlock::with_prefix(address, bits).to_key()),
        None => Err(format!(
            "--client-prefix: expected an IP address without a port, found {}",
            shown(key)
        )),
    }
}

#[inline]
fn run_row(row: &Row<'_>, limiter: &Limiter<MemoryStore>) -> Result<RowResult, Error> {
    let decision = match row.action {
        Action::Acquire => limiter.acquire(row.key).cost(row.cost).at(row.at).now(),
        Action::Peek => limiter.peek(row.key).cost(row.cost).at(row.at).now(),
        Action::Record => limiter.record(row.key).cost(row.cost).at(row.at).now(),
        Action::Reset => {
            limiter.reset(row.key).now()?;
            return Ok(RowResult::Reset);
        }
    };
    match decision {
        Ok(decision) => Ok(RowResult::Decided(decision)),
        Err(error) => match error.kind() {
            kind @ (ErrorKind::InvalidCost | ErrorKind::CostExceedsLimit) => {
                Ok(RowResult::Refused(kind))
            }
            _ => Err(error),
        },
    }
}
