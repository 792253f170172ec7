//! Results of calls, in a form that can be compared and printed.

use std::fmt;

use limiter_core::store::{Facts, Outcome, Settlement, SettlementFacts};
use limiter_core::{Decision, ErrorKind, Status, Timestamp};

use crate::answer::Answer;
use crate::answer::fields::{Fields, of_status, since};

/// The result of a call, expected or actual.
#[derive(Clone, Debug)]
pub(crate) enum CallResult {
    Decided(Box<Decided>),
    Settled(Box<Settled>),
    /// Whether there was a log.
    Reset(bool),
    /// The error, as text. Empty if it is expected.
    Failed(ErrorKind, String),
    /// The call's future was dropped.
    Dropped,
}

/// The result of an acquire, a peek or a record.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) answer: Answer,
    /// The step that appended the entry, if it was not this one.
    pub(crate) repeats: Option<usize>,
    /// Facts that a decision lacks. `None` if the store decided without returning facts.
    pub(crate) raw_facts: Option<RawFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) applied: bool,
    pub(crate) status: Status,
    pub(crate) newest: Option<Timestamp>,
}

/// The parts of [`Facts`] that a decision lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFacts {
    /// The name of the [`Outcome`].
    pub(crate) outcome: &'static str,
    pub(crate) newest: Option<Timestamp>,
}

impl RawFacts {
    pub(crate) const APPENDED: &str = "Appended";
}

impl From<&Facts> for RawFacts {
    fn from(facts: &Facts) -> Self {
        let outcome = match facts.outcome {
            Outcome::Nothing => "Nothing",
            Outcome::Appended(_) => Self::APPENDED,
            Outcome::Repeated(_) => "Repeated",
        };
        Self {
            outcome,
            newest: facts.log.newest,
        }
    }
}

impl CallResult {
    /// Returns the result of an acquire, a peek or a record.
    pub(crate) fn decided(decision: &Decision, raw_facts: Option<RawFacts>) -> Self {
        Self::Decided(Box::new(Decided {
            answer: Answer::from(decision),
            repeats: None,
            raw_facts,
        }))
    }

    pub(crate) fn settled(settlement: &Settlement<'_>, facts: SettlementFacts) -> Self {
        let newest = facts.log.newest;
        let settled = limiter_core::Settled::new(settlement, facts);
        Self::Settled(Box::new(Settled {
            applied: settled.applied(),
            status: settled.status().clone(),
            newest,
        }))
    }

    /// Notes the step that appended the entry, if the result has a receipt.
    pub(crate) fn with_original(mut self, original: impl FnOnce() -> Option<usize>) -> Self {
        if let Self::Decided(decided) = &mut self
            && decided.answer.receipt.is_some()
        {
            decided.repeats = original();
        }
        self
    }

    /// Returns `true` if the store's result agrees with this expected one. Compares only what the store returned.
    pub(crate) fn agrees(&self, got: &Self) -> bool {
        match (self, got) {
            (Self::Decided(expected), Self::Decided(got)) => {
                expected.answer == got.answer
                    && expected.repeats == got.repeats
                    && (got.raw_facts.is_none() || expected.raw_facts == got.raw_facts)
            }
            (Self::Settled(expected), Self::Settled(got)) => expected == got,
            (Self::Reset(expected), Self::Reset(got)) => expected == got,
            (Self::Failed(expected, _), Self::Failed(got, _)) => expected == got,
            _ => false,
        }
    }

    /// Returns the time from which the waits count: the store's clock, or the given time after clamping.
    pub(crate) fn clock(&self) -> Option<Timestamp> {
        let status = match self {
            Self::Decided(decided) => &decided.answer.status,
            Self::Settled(settled) => &settled.status,
            _ => return None,
        };
        let micros = status.at().as_micros() - status.clock_behind().as_micros() as u64;
        Some(Timestamp::from_micros_saturating(micros))
    }

    /// Returns the time of the newest entry, if the store stated it.
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Decided(decided) => decided.raw_facts?.newest,
            Self::Settled(settled) => settled.newest,
            _ => None,
        }
    }

    /// Returns the fields, with times relative to `start`.
    pub(crate) fn fields(&self, start: Timestamp) -> Fields {
        let newest = |newest: Option<Timestamp>| {
            (
                "newest entry".to_owned(),
                newest.map_or_else(|| "none".to_owned(), |newest| since(start, newest)),
            )
        };
        match self {
            Self::Decided(decided) => {
                let mut fields = decided.answer.fields(start);
                let entry = decided.repeats.map_or_else(
                    || "new, or none".to_owned(),
                    |step| format!("appended by step {step}"),
                );
                fields.push(("entry".to_owned(), entry));
                if let Some(raw_facts) = decided.raw_facts {
                    fields.push(("outcome".to_owned(), raw_facts.outcome.to_owned()));
                    fields.push(newest(raw_facts.newest));
                }
                fields
            }
            Self::Settled(settled) => {
                let mut fields = vec![("applied".to_owned(), settled.applied.to_string())];
                fields.extend(of_status(&settled.status, start));
                fields.push(newest(settled.newest));
                fields
            }
            Self::Failed(kind, text) if text.is_empty() => {
                vec![("error".to_owned(), format!("{kind:?}"))]
            }
            Self::Failed(_, text) => vec![("error".to_owned(), text.clone())],
            Self::Reset(removed) => vec![("there was a log".to_owned(), removed.to_string())],
            Self::Dropped => vec![("future".to_owned(), "dropped".to_owned())],
        }
    }
}

/// Prints the most telling fields in one line. Usage has one number per limit.
impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self {
            Self::Decided(decided) => {
                let answer = &decided.answer;
                f.write_str(if answer.allowed { "allowed" } else { "denied" })?;
                if let Some(wait) = answer.retry_after {
                    write!(f, ", retry_after {}", wait.as_micros())?;
                }
                if let Some(step) = decided.repeats {
                    write!(f, ", appended by step {step}")?;
                }
                &answer.status
            }
            Self::Settled(settled) => {
                let applied = settled.applied;
                f.write_str(if applied { "applied" } else { "not applied" })?;
                &settled.status
            }
            Self::Failed(kind, text) if text.is_empty() => return write!(f, "error {kind:?}"),
            Self::Failed(_, text) => return write!(f, "error {text}"),
            Self::Reset(true) => return f.write_str("there was a log"),
            Self::Reset(false) => return f.write_str("there was no log"),
            Self::Dropped => return f.write_str("dropped"),
        };
        f.write_str(", used")?;
        for limit in status.limits().iter() {
            write!(f, " {}", limit.used())?;
        }
        Ok(())
    }
}
