//! Runs the rows of a trace against a policy.

use std::io::Read;

use anyhow::Context;
use limiter_core::{Decision, Error, ErrorKind, Mode, NowStore, Op, Policy, decide};

use crate::trace::{Action, Malformed, Row, Trace, TraceError};

/// Decides on operations, one at a time.
pub trait Decider {
    /// Runs one operation.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidCost`] and [`ErrorKind::CostExceedsLimit`] for an operation that can never fit, or whatever
    /// keeps the store from answering.
    fn decide(&mut self, op: Op<'_>) -> Result<Decision, Error>;

    /// Removes the log of a key.
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    fn reset(&mut self, key: &[u8]) -> Result<(), Error>;
}

/// Decides by a store that answers at once.
#[derive(Debug)]
pub struct Immediate<S>(pub S);

impl<S: NowStore> Decider for Immediate<S> {
    #[inline]
    fn decide(&mut self, op: Op<'_>) -> Result<Decision, Error> {
        let op = op.checked()?;
        let facts = self.0.apply_now(&op);
        facts.verify(&op)?;
        Ok(decide(&op, &facts))
    }

    #[inline]
    fn reset(&mut self, key: &[u8]) -> Result<(), Error> {
        self.0.reset_now(key);
        Ok(())
    }
}

/// What became of a row.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, and a box would cost every row an allocation")]
pub enum Answer {
    /// It was decided on.
    Decided(Decision),
    /// Its cost is 0 or can never fit; nothing was recorded.
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
    /// The name in the output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidCost => "invalid_cost",
            Self::CostExceedsLimit => "cost_exceeds_limit",
        }
    }
}

/// Is told of every row, in the order of the trace.
pub trait Observer {
    /// A row and what became of it.
    ///
    /// # Errors
    /// Whatever keeps the observer from going on; it ends the replay.
    fn row(&mut self, row: &Row<'_>, answer: &Answer) -> anyhow::Result<()>;

    /// A malformed row that is skipped.
    fn skipped(&mut self, malformed: Malformed) {
        drop(malformed);
    }

    /// How far the replay is, now and then: bytes of the trace and rows.
    fn progress(&mut self, bytes: u64, rows: u64) {
        let _ = (bytes, rows);
    }
}

/// Runs every row of a trace in order, at the row's own time.
///
/// # Errors
/// A [`TraceError`] for a malformed row unless `skip_invalid`, or for failed reading; an error of the store; an error
/// of the observer.
pub fn replay<R: Read>(
    trace: &mut Trace<R>,
    policy: &Policy,
    decider: &mut impl Decider,
    skip_invalid: bool,
    observer: &mut impl Observer,
) -> anyhow::Result<()> {
    const PROGRESS: u64 = 1 << 14;
    let mut rows = 0_u64;
    loop {
        match trace.next() {
            None => return Ok(()),
            Some(Ok(row)) => {
                let answer = answer(&row, policy, decider)
                    .with_context(|| format!("deciding on row {} of the trace", rows + 1))?;
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
fn answer(row: &Row<'_>, policy: &Policy, decider: &mut impl Decider) -> Result<Answer, Error> {
    match mode(row.action) {
        Some(mode) => Answer::from_result(decider.decide(Op::new(mode, row.key, policy).cost(row.cost).at(row.at))),
        None => decider.reset(row.key).map(|()| Answer::Reset),
    }
}

/// The mode of an action; none of a reset.
#[inline]
pub(crate) fn mode(action: Action) -> Option<Mode> {
    match action {
        Action::Acquire => Some(Mode::Acquire),
        Action::Peek => Some(Mode::Peek),
        Action::Record => Some(Mode::Record),
        Action::Reset => None,
    }
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
