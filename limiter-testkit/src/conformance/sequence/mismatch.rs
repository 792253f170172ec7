//! Wrong results.

use std::fmt;

use limiter_core::{ErrorKind, Timestamp};

use super::Plan;
use super::call_result::CallResult;
use super::transcript;
use crate::conformance::sentence::Sentence::{
    self, E1, E2, L2, L3, L4, L5, L9, L11, L15, S1, S2, S4, S6, S7, S8, T3,
};

/// A wrong result from a store, or another failed check. [`Display`](fmt::Display) prints every call up to it.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The name of the failing case. Empty for a plan without a name.
    pub(crate) title: String,
    /// The number of the wrong call.
    pub call: usize,
    /// The step of the case that the call belongs to.
    pub(crate) step: usize,
    /// The sentences that the result suggests, or that the case checks.
    pub(crate) citations: Vec<Sentence>,
    pub(crate) transcript: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for citation in &self.citations {
            writeln!(f, "{citation}")?;
        }
        f.write_str(self.transcript.trim_end())
    }
}

impl std::error::Error for Mismatch {}

impl Mismatch {
    /// Returns a failed check of these sentences, without a call.
    pub(crate) fn new(
        title: impl Into<String>,
        citations: &[Sentence],
        transcript: impl Into<String>,
    ) -> Self {
        let (title, transcript) = (title.into(), transcript.into());
        Self {
            title,
            call: 0,
            step: 0,
            citations: citations.to_vec(),
            transcript,
        }
    }

    pub(crate) fn titled(self, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..self
        }
    }

    /// Adds a circumstance to the title. The mismatch then cites these sentences first.
    pub(crate) fn under(mut self, circumstance: &str, citations: &[Sentence]) -> Self {
        self.title += circumstance;
        self.citations.splice(0..0, citations.iter().copied());
        self
    }
}

/// Returns the mismatch of a wrong result of the plan's last call.
pub(crate) fn mismatch(plan: &Plan, got: &CallResult) -> Mismatch {
    let Some(last) = plan.calls.last() else {
        return Mismatch::new("", &[], "there is no call");
    };
    let (call, citations) = (plan.calls.len() - 1, suggested(&last.expected, got));
    Mismatch {
        call,
        step: last.step,
        ..Mismatch::new("", &citations, transcript::of_last(plan, got))
    }
}

/// Fields of a decision, most telling first.
const DECIDED: &[(&str, &[Sentence])] = &[
    ("at", &[T3]),
    ("outcome", &[L4, L9]),
    ("entry", &[L9]),
    ("allowed", &[L3]),
    ("receipt", &[L5, L15]),
    ("newest entry", &[L11]),
    ("used", &[L2, L11]),
    ("", &[L2]),
];

/// Fields of a settlement, most telling first.
const SETTLED: &[(&str, &[Sentence])] = &[
    ("at", &[T3]),
    ("applied", &[S1, S4]),
    ("newest entry", &[L11]),
    ("used", &[S2, S7]),
    ("", &[S7]),
];

/// Returns the sentences that the most telling wrong field suggests.
fn suggested(expected: &CallResult, got: &CallResult) -> Vec<Sentence> {
    let table = match (expected, got) {
        (_, CallResult::Failed(ErrorKind::Inconsistent, _)) => return vec![L11],
        (CallResult::Failed(..), _) => return vec![E2],
        (CallResult::Settled(_), CallResult::Failed(..)) => return vec![E1, S6],
        (_, CallResult::Failed(..)) => return vec![E1],
        (CallResult::Reset(_) | CallResult::Dropped, _) => return vec![S8],
        (CallResult::Settled(_), _) => SETTLED,
        (CallResult::Decided(_), _) => DECIDED,
    };
    let [right, wrong] = [expected, got].map(|result| result.fields(Timestamp::EPOCH));
    let differs = |field: &str| {
        // If there are several limits, the limit precedes the name of the field.
        let is_it =
            |name: &str| field.is_empty() || name == field || name.ends_with(&format!(": {field}"));
        right.iter().any(|(name, value)| {
            is_it(name)
                && wrong
                    .iter()
                    .any(|(other, got)| other == name && got != value)
        })
    };
    table
        .iter()
        .find(|(field, _)| differs(field))
        .map(|(_, citations)| citations.to_vec())
        .unwrap_or_default()
}
