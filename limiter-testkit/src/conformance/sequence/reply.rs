//! What a store answers to a call, in a form that can be compared and printed.

use std::fmt;

use limiter_core::store::{Facts, Outcome};
use limiter_core::{Error, ErrorKind, Timestamp};

use crate::answer::fields::{Fields, of_status, since};
use crate::answer::{Answer, StatusAnswer};

/// What a call came to, or must come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Decided(Box<Decided>),
    Refused(ErrorKind),
    Settled(Box<Settled>),
    /// Whether there was a log.
    Reset(bool),
}

/// An answer to an acquire, a peek or a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) answer: Answer,
    /// The call that appended the entry, if this one did not.
    pub(crate) repeats: Option<usize>,
    /// What a decision does not show. `None` if the store decided without stating its facts.
    pub(crate) hidden: Option<Hidden>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) applied: bool,
    pub(crate) status: StatusAnswer,
    pub(crate) newest: Option<Timestamp>,
}

/// The parts of [`Facts`] that no decision shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hidden {
    pub(crate) outcome: Kind,
    pub(crate) newest: Option<Timestamp>,
}

/// An [`Outcome`] without its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nothing,
    Appended,
    Repeated,
}

impl From<&Facts> for Hidden {
    fn from(facts: &Facts) -> Self {
        let outcome = match facts.outcome {
            Outcome::Nothing => Kind::Nothing,
            Outcome::Appended(_) => Kind::Appended,
            Outcome::Repeated(_) => Kind::Repeated,
        };
        Self { outcome, newest: facts.log.newest }
    }
}

/// What a store answered.
pub(crate) type Got = Result<Reply, Error>;

/// Whether a store's answer is the expected one, as far as the store states it.
pub(crate) fn agrees(expected: &Reply, got: &Got) -> bool {
    match (expected, got) {
        (Reply::Decided(expected), Ok(Reply::Decided(got))) => {
            expected.answer == got.answer
                && expected.repeats == got.repeats
                && (got.hidden.is_none() || expected.hidden == got.hidden)
        }
        (Reply::Refused(kind), Err(error)) => error.kind() == *kind,
        (expected, Ok(got)) => expected == got,
        (_, Err(_)) => false,
    }
}

impl Reply {
    /// Returns the time of the operation.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Decided(decided) => Some(decided.answer.status.at),
            Self::Settled(settled) => Some(settled.status.at),
            Self::Refused(_) | Self::Reset(_) => None,
        }
    }

    /// Returns the fields, all times relative to `start`.
    pub(crate) fn fields(&self, start: Timestamp) -> Fields {
        let newest = |newest: Option<Timestamp>| {
            ("newest entry".to_owned(), newest.map_or_else(|| "none".to_owned(), |newest| since(start, newest)))
        };
        match self {
            Self::Decided(decided) => {
                let mut fields = decided.answer.fields(start);
                let entry =
                    decided.repeats.map_or_else(|| "new, or none".to_owned(), |call| format!("that of call {call}"));
                fields.push(("entry".to_owned(), entry));
                if let Some(hidden) = decided.hidden {
                    fields.push(("outcome".to_owned(), format!("{:?}", hidden.outcome)));
                    fields.push(newest(hidden.newest));
                }
                fields
            }
            Self::Settled(settled) => {
                let mut fields = vec![("applied".to_owned(), settled.applied.to_string())];
                fields.extend(of_status(&settled.status, start));
                fields.push(newest(settled.newest));
                fields
            }
            Self::Refused(kind) => vec![("error".to_owned(), format!("{kind:?}"))],
            Self::Reset(removed) => vec![("there was a log".to_owned(), removed.to_string())],
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided(decided) => match decided.repeats {
                Some(call) => write!(f, "{}, repeats call {call}", decided.answer),
                None => decided.answer.fmt(f),
            },
            Self::Refused(kind) => write!(f, "the error {kind:?}"),
            Self::Settled(settled) => {
                write!(f, "{}, {}", if settled.applied { "applied" } else { "not applied" }, settled.status)
            }
            Self::Reset(removed) => f.write_str(if *removed { "removed" } else { "there was no log" }),
        }
    }
}
