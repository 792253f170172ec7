//! Results of calls, in a form that can be compared and printed.

use std::fmt;

use limiter_core::store::{Change, Facts, Mode, Outcome, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, LimitStatus, Receipt, Settled, Status, Timestamp};

use super::call::LogId;
use crate::DecisionValues;
use crate::case::Verb;

/// The result of a call, expected or actual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// Of an acquire, a peek or a record.
    Decided(Box<Decided>),
    /// Of a settlement or a renewal.
    Settled(Box<SettledValues>),
    Reset {
        there_was_a_log: bool,
    },
    Failed(Failed),
    /// The call's future was dropped.
    Dropped,
    /// The store cannot make the call as one with others.
    NotTogether,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) kind: ErrorKind,
    /// The log that it identifies.
    pub(crate) log: Option<LogId>,
    /// Empty for an expected error.
    pub(crate) text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) values: DecisionValues,
    /// The time from which the waits count.
    pub(crate) clock: Timestamp,
    /// The step that appended the entry, if it was not this one.
    pub(crate) repeats: Option<usize>,
    /// Facts that a decision lacks. `None` if the store decided without returning facts.
    pub(crate) raw_facts: Option<RawFacts>,
}

/// The parts of [`Facts`] that a decision lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFacts {
    /// The name of the [`Outcome`].
    pub(crate) outcome: &'static str,
    pub(crate) newest: Option<Timestamp>,
}

/// The values of a settlement or a renewal on which all stores must agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettledValues {
    pub(crate) applied: bool,
    /// The time of the entry.
    pub(crate) entry: Option<Timestamp>,
    pub(crate) cost_before: Option<u64>,
    pub(crate) status: Status,
    /// The time from which the waits count.
    pub(crate) clock: Timestamp,
    pub(crate) newest: Option<Timestamp>,
}

impl RawFacts {
    const REPEATED: &str = "Repeated";
}

impl Decided {
    pub(crate) fn is_repeated(&self) -> bool {
        self.raw_facts
            .is_some_and(|facts| facts.outcome == RawFacts::REPEATED)
    }

    /// Takes over what is unspecified: the receipt of a repetition, and much of one of several operations.
    fn relax(&mut self, joint: Option<Verb>, got: &Self) {
        // A store need not know whether a repeated entry has a receipt.
        if self.is_repeated() && got.values.receipt.is_none() {
            self.values.receipt = None;
            self.repeats = None;
        }
        // A record that another one denied may be above the maximum, so that no wait helps: which limit binds is unspecified.
        let of_limits = |values: &DecisionValues| -> Vec<_> {
            let of =
                |limit: &LimitStatus| (limit.used(), limit.refill_after(), limit.reset_after());
            values.status.limits().iter().map(of).collect()
        };
        let is_held = joint == Some(Verb::Run(Mode::Record)) && !self.values.appended;
        if is_held
            && self.values.status.at() == got.values.status.at()
            && of_limits(&self.values) == of_limits(&got.values)
        {
            self.values.status = got.values.status.clone();
            self.values.retry_after = got.values.retry_after;
        }
    }
}

impl From<&Facts> for RawFacts {
    fn from(facts: &Facts) -> Self {
        let outcome = match facts.outcome {
            Outcome::Nothing => "Nothing",
            Outcome::Uncounted => "Uncounted",
            Outcome::Appended(_) => "Appended",
            Outcome::Repeated { .. } => Self::REPEATED,
        };
        Self {
            outcome,
            newest: facts.log.newest,
        }
    }
}

/// Returns the time from which the waits count: the store's clock, or the given time after clamping.
fn clock(status: &Status) -> Timestamp {
    let behind = status.clock_behind().as_micros() as u64;
    Timestamp::from_micros_saturating(status.at().as_micros() - behind)
}

impl CallResult {
    pub(crate) fn decided(decision: &Decision, raw_facts: Option<RawFacts>) -> Self {
        Self::Decided(Box::new(Decided {
            values: DecisionValues::from(decision),
            clock: clock(decision.status()),
            repeats: None,
            raw_facts,
        }))
    }

    pub(crate) fn failed(error: &Error, log: Option<LogId>) -> Self {
        Self::Failed(Failed {
            kind: error.kind(),
            log,
            text: error.to_string(),
        })
    }

    /// Returns the result, and the receipt of a renewal.
    pub(crate) fn settled(
        settlement: &Settlement<'_>,
        facts: SettlementFacts,
    ) -> (Self, Option<Receipt>) {
        let newest = facts.log.newest;
        let changed = facts.changed;
        let settled = Settled::new(settlement, facts);
        let values = SettledValues {
            applied: settled.applied(),
            entry: changed.map(|changed| changed.entry.at),
            cost_before: changed.map(|changed| changed.cost_before),
            status: settled.status().clone(),
            clock: clock(settled.status()),
            newest,
        };
        let is_renewal = matches!(settlement.change, Change::Renew { .. });
        let receipt = settled.receipt().filter(|_| is_renewal);
        (Self::Settled(Box::new(values)), receipt)
    }

    /// Notes the step that appended the entry, if the result has a receipt.
    pub(crate) fn with_original(mut self, original: impl FnOnce() -> Option<usize>) -> Self {
        if let Self::Decided(decided) = &mut self
            && decided.values.receipt.is_some()
        {
            decided.repeats = original();
        }
        self
    }

    /// Returns this expected result, without what the store's result leaves out. `joint` is the verb of a call that is one of several.
    pub(crate) fn comparable(&self, got: &Self, joint: Option<Verb>) -> Self {
        match (self.clone(), got) {
            (Self::Decided(mut expected), Self::Decided(got)) => {
                expected.relax(joint, got);
                expected.raw_facts = expected.raw_facts.filter(|_| got.raw_facts.is_some());
                Self::Decided(expected)
            }
            (Self::Failed(expected), Self::Failed(got)) => Self::Failed(Failed {
                text: got.text.clone(),
                ..expected
            }),
            (expected, _) => expected,
        }
    }

    pub(crate) fn has_receipt(&self) -> bool {
        matches!(self, Self::Decided(decided) if decided.values.receipt.is_some())
    }

    pub(crate) fn status(&self) -> Option<&Status> {
        match self {
            Self::Decided(decided) => Some(&decided.values.status),
            Self::Settled(settled) => Some(&settled.status),
            _ => None,
        }
    }

    /// Returns the time from which the waits count.
    pub(crate) fn clock(&self) -> Option<Timestamp> {
        self.status().map(clock)
    }

    /// Returns the time of the newest entry, if the store stated it.
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::Decided(decided) => decided.raw_facts?.newest,
            Self::Settled(settled) => settled.newest,
            _ => None,
        }
    }

    /// Returns `true` if the call may have changed its log.
    pub(crate) fn may_have_changed(&self) -> bool {
        match self {
            Self::Decided(decided) => decided.values.appended,
            Self::Settled(settled) => settled.applied,
            Self::Reset { there_was_a_log } => *there_was_a_log,
            _ => false,
        }
    }
}

/// Prints the most telling fields in one line. Usage has one number per limit.
impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self {
            Self::Decided(decided) => {
                let values = &decided.values;
                f.write_str(match (values.fits, values.retry_after) {
                    (true, _) => "allowed",
                    (false, Some(_)) => "denied",
                    // A record counts even then.
                    (false, None) => "above a maximum",
                })?;
                if let Some(wait) = values.retry_after {
                    write!(f, ", retry_after {}", wait.as_micros())?;
                }
                if let Some(step) = decided.repeats {
                    write!(f, ", appended by step {step}")?;
                }
                &values.status
            }
            Self::Settled(settled) => {
                let text = if settled.applied {
                    "applied"
                } else {
                    "not applied"
                };
                f.write_str(text)?;
                &settled.status
            }
            Self::Reset { there_was_a_log } => {
                return write!(f, "there was a log: {there_was_a_log}");
            }
            Self::Failed(Failed { kind, log, text }) => {
                write!(f, "error {kind:?}")?;
                match log {
                    Some(log) => write!(f, " that identifies key {} of name {}", log.key, log.name),
                    None => f.write_str(" that identifies no log"),
                }?;
                let separator = if text.is_empty() { "" } else { ": " };
                return write!(f, "{separator}{text}");
            }
            Self::Dropped => return f.write_str("dropped"),
            Self::NotTogether => return f.write_str("not together with others"),
        };
        let limits = status.limits();
        let used: Vec<u64> = limits.iter().map(LimitStatus::used).collect();
        write!(f, ", used {used:?}")
    }
}
