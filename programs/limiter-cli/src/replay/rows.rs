//! A trace's rows, and their results.

use std::io::Read;

use anyhow::Context;
use limiter_core::{Decision, Error, ErrorKind, IpBlock, Key, KeyBuf, Limiter};
use limiter_memory::MemoryStore;

use super::Replay;
use crate::json::DecisionFields;
use crate::trace::{Action, Malformed, Row, Trace, shown};

/// The result of a row.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one exists at a time, and a box would cost every row an allocation"
)]
pub(super) enum RowResult {
    /// The limiter decided.
    Decided(Decision),
    /// The cost is 0 or can never fit. The row had no effect.
    Refused(ErrorKind),
    /// The key's log was removed.
    Reset,
}

impl RowResult {
    /// Returns the fields of the decision, if there is one.
    pub(super) fn fields(&self) -> Option<DecisionFields> {
        match self {
            Self::Decided(decision) => Some(decision.into()),
            Self::Refused(_) | Self::Reset => None,
        }
    }
}

/// Malformed rows that were skipped.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    pub(super) count: u64,
    pub(super) first: Option<Malformed>,
}

/// Runs every row at the time of the row, and calls `each` with the result. Ends at a malformed row, or skips it.
pub(super) fn replay<R: Read>(
    args: &Replay,
    trace: &mut Trace<R>,
    limiter: &Limiter<MemoryStore>,
    mut each: impl FnMut(&Row<'_>, &RowResult) -> anyhow::Result<()>,
) -> anyhow::Result<Skipped> {
    let mut number = 0_u64;
    let mut skipped = Skipped::default();
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
                    each(&row, &result)?;
                    continue;
                }
            },
            Err(error) => error.downcast()?,
        };
        if !(args.skip_invalid && malformed.skippable) {
            return Err(malformed.into());
        }
        skipped.count += 1;
        skipped.first.get_or_insert(malformed);
    }
    Ok(skipped)
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
