//! Results of calls, in a form that can be compared and printed.

use std::fmt;

use limiter_core::store::{Facts, Mode, Outcome, Settlement, SettlementFacts};
use limiter_core::{Decision, ErrorKind, LimitStatus, Status, Timestamp};

use super::case::Verb;
use crate::answer::Answer;

/// The result of a call, expected or actual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// Of an acquire, a peek or a record.
    Decided(Box<Decided>),
    Settled(Box<Settled>),
    Reset {
        there_was_a_log: bool,
    },
    /// The error, as text. Empty if it is expected.
    Failed(ErrorKind, String),
    /// The call's future was dropped.
    Dropped,
    /// The store cannot make the call as one with others.
    NotTogether,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) answer: Answer,
    /// The time from which the waits count.
    pub(crate) clock: Timestamp,
    /// The step that appended the entry, if it was not this one.
    pub(crate) repeats: Option<usize>,
    /// Facts that a decision lacks. `None` if the store decided without returning facts.
    pub(crate) raw_facts: Option<RawFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The entry's cost before, and its time afterwards. `None` unless it took effect.
    pub(crate) changed: Option<(u64, Timestamp)>,
    pub(crate) status: Status,
    pub(crate) clock: Timestamp,
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
    pub(crate) const REPEATED: &str = "Repeated";
}

impl Decided {
    /// Takes over what is unspecified for one of several operations.
    fn relax(&mut self, joint: Option<Verb>, got: &Self) {
        // A store need not know whether a repeated entry has a receipt.
        if self
            .raw_facts
            .is_some_and(|facts| facts.outcome == RawFacts::REPEATED)
            && got.answer.receipt.is_none()
        {
            (self.answer.receipt, self.repeats) = (None, None);
        }
        // A record that another one denied may be above the maximum, so that no wait helps: which limit binds is unspecified.
        let values = |answer: &Answer| -> Vec<_> {
            let of =
                |limit: &LimitStatus| (limit.used(), limit.refill_after(), limit.reset_after());
            answer.status.limits().iter().map(of).collect()
        };
        let is_held = joint == Some(Verb::Run(Mode::Record)) && !self.answer.appended;
        if is_held
            && self.answer.status.at() == got.answer.status.at()
            && values(&self.answer) == values(&got.answer)
        {
            self.answer.status = got.answer.status.clone();
            self.answer.retry_after = got.answer.retry_after;
        }
    }
}

impl From<&Facts> for RawFacts {
    fn from(facts: &Facts) -> Self {
        let outcome = match facts.outcome {
            Outcome::Nothing => "Nothing",
            Outcome::Appended(_) => Self::APPENDED,
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
            answer: Answer::from(decision),
            clock: clock(decision.status()),
            repeats: None,
            raw_facts,
        }))
    }

    pub(crate) fn settled(settlement: &Settlement<'_>, facts: SettlementFacts) -> Self {
        let newest = facts.log.newest;
        let changed = facts
            .changed
            .map(|changed| (changed.cost_before, changed.entry.at));
        let settled = limiter_core::Settled::new(settlement, facts);
        Self::Settled(Box::new(Settled {
            changed,
            status: settled.status().clone(),
            clock: clock(settled.status()),
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

    /// Returns this expected result, without what the store's result leaves out. `joint` is the verb of a call that is one of several.
    pub(crate) fn comparable(&self, got: &Self, joint: Option<Verb>) -> Self {
        match (self.clone(), got) {
            (Self::Decided(mut expected), Self::Decided(got)) => {
                expected.raw_facts = expected.raw_facts.filter(|_| got.raw_facts.is_some());
                if joint.is_some() {
                    expected.relax(joint, got);
                }
                Self::Decided(expected)
            }
            (Self::Failed(kind, _), Self::Failed(_, text)) => Self::Failed(kind, text.clone()),
            (expected, _) => expected,
        }
    }

    pub(crate) fn status(&self) -> Option<&Status> {
        match self {
            Self::Decided(decided) => Some(&decided.answer.status),
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
            Self::Decided(decided) => decided.answer.appended,
            Self::Settled(settled) => settled.changed.is_some(),
            Self::Reset { there_was_a_log } => *there_was_a_log,
            _ => false,
        }
    }
}

/// Prints the most telling fields in one line. Usage has one number per limit.
impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided(decided) => {
                let answer = &decided.answer;
                f.write_str(if answer.allowed { "allowed" } else { "denied" })?;
                if let Some(wait) = answer.retry_after {
                    write!(f, ", retry_after {}", wait.as_micros())?;
                }
                if let Some(step) = decided.repeats {
                    write!(f, ", appended by step {step}")?;
                }
            }
            Self::Settled(settled) => match settled.changed {
                Some((before, _)) => write!(f, "applied to a cost of {before}")?,
                None => f.write_str("not applied")?,
            },
            Self::Reset { there_was_a_log } => write!(f, "there was a log: {there_was_a_log}")?,
            Self::Failed(kind, text) if text.is_empty() => write!(f, "error {kind:?}")?,
            Self::Failed(_, text) => write!(f, "error {text}")?,
            Self::Dropped => f.write_str("dropped")?,
            Self::NotTogether => f.write_str("not together with others")?,
        }
        let Some(status) = self.status() else {
            return Ok(());
        };
        let used: Vec<u64> = status.limits().iter().map(LimitStatus::used).collect();
        write!(f, ", used {used:?}")
    }
}
