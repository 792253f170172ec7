//! Results of calls, in a form that can be compared and printed.

use std::fmt;

use limiter_core::store::{Change, Facts, Mode, Outcome, Settlement, SettlementFacts};
use limiter_core::{Decision, Error, ErrorKind, LimitStatus, Receipt, Settled, Status, Timestamp};

use super::case::Verb;
use crate::answer::Answer;

/// The result of a call, expected or actual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// Of an acquire, a peek, a record, a settlement or a renewal.
    Decided(Box<Decided>),
    Reset {
        there_was_a_log: bool,
    },
    /// The error, also as text.
    Failed(ErrorKind, String),
    /// The call's future was dropped.
    Dropped,
    /// The store cannot make the call as one with others.
    NotTogether,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    /// A settlement is allowed if it took effect. Its receipt has the entry's time, and its cost is the one before.
    pub(crate) answer: Answer,
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
    /// The name of the [`Outcome`], or [`SETTLED`](Self::SETTLED).
    pub(crate) outcome: &'static str,
    pub(crate) newest: Option<Timestamp>,
}

impl RawFacts {
    const REPEATED: &str = "Repeated";
    const SETTLED: &str = "Settled";
}

impl Decided {
    fn new(answer: Answer, raw_facts: Option<RawFacts>) -> Self {
        Self {
            clock: clock(&answer.status),
            answer,
            repeats: None,
            raw_facts,
        }
    }

    fn is(&self, outcome: &str) -> bool {
        self.raw_facts.is_some_and(|facts| facts.outcome == outcome)
    }

    pub(crate) fn is_repeated(&self) -> bool {
        self.is(RawFacts::REPEATED)
    }

    /// Takes over what is unspecified for one of several operations.
    fn relax(&mut self, joint: Option<Verb>, got: &Self) {
        // A store need not know whether a repeated entry has a receipt.
        if self.is_repeated() && got.answer.receipt.is_none() {
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
        Self::Decided(Box::new(Decided::new(Answer::from(decision), raw_facts)))
    }

    pub(crate) fn failed(error: &Error) -> Self {
        Self::Failed(error.kind(), format!("{error:?}"))
    }

    /// Returns the result, and the receipt of a renewal.
    pub(crate) fn settled(
        settlement: &Settlement<'_>,
        facts: SettlementFacts,
    ) -> (Self, Option<Receipt>) {
        let newest = facts.log.newest;
        let changed = facts.changed;
        let settled = Settled::new(settlement, facts);
        let is_renewal = matches!(settlement.change, Change::Renew { .. });
        let answer = Answer {
            allowed: settled.applied(),
            retry_after: None,
            appended: settled.applied() && is_renewal,
            receipt: changed.map(|changed| (changed.entry.at, settlement.receipt.window())),
            cost: changed.map(|changed| changed.cost_before),
            status: settled.status().clone(),
        };
        let outcome = RawFacts::SETTLED;
        let decided = Decided::new(answer, Some(RawFacts { outcome, newest }));
        let receipt = settled.receipt().filter(|_| is_renewal);
        (Self::Decided(Box::new(decided)), receipt)
    }

    /// Notes the step that appended the entry, if the result has a receipt.
    pub(crate) fn with_original(mut self, original: impl FnOnce() -> Option<usize>) -> Self {
        if let Self::Decided(decided) = &mut self
            && decided.answer.receipt.is_some()
            && !decided.is(RawFacts::SETTLED)
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

    fn as_decided(&self) -> Option<&Decided> {
        match self {
            Self::Decided(decided) => Some(decided),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> Option<&Status> {
        self.as_decided().map(|decided| &decided.answer.status)
    }

    /// Returns the time from which the waits count.
    pub(crate) fn clock(&self) -> Option<Timestamp> {
        self.as_decided().map(|decided| decided.clock)
    }

    /// Returns the time of the newest entry, if the store stated it.
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        self.as_decided()?.raw_facts?.newest
    }

    /// Returns `true` if the call may have changed its log.
    pub(crate) fn may_have_changed(&self) -> bool {
        match self {
            Self::Decided(decided) if decided.is(RawFacts::SETTLED) => decided.answer.allowed,
            Self::Decided(decided) => decided.answer.appended,
            Self::Reset { there_was_a_log } => *there_was_a_log,
            _ => false,
        }
    }
}

/// Prints the most telling fields in one line. Usage has one number per limit.
impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decided = match self {
            Self::Decided(decided) => decided,
            Self::Reset { there_was_a_log } => {
                return write!(f, "there was a log: {there_was_a_log}");
            }
            Self::Failed(kind, text) if text.is_empty() => return write!(f, "error {kind:?}"),
            Self::Failed(_, text) => return write!(f, "error {text}"),
            Self::Dropped => return f.write_str("dropped"),
            Self::NotTogether => return f.write_str("not together with others"),
        };
        let answer = &decided.answer;
        f.write_str(match (decided.is(RawFacts::SETTLED), answer.allowed) {
            (false, true) => "allowed",
            (false, false) => "denied",
            (true, true) => "applied",
            (true, false) => "not applied",
        })?;
        if let Some(wait) = answer.retry_after {
            write!(f, ", retry_after {}", wait.as_micros())?;
        }
        if let Some(step) = decided.repeats {
            write!(f, ", appended by step {step}")?;
        }
        let limits = answer.status.limits();
        let used: Vec<u64> = limits.iter().map(LimitStatus::used).collect();
        write!(f, ", used {used:?}")
    }
}
