//! Wrong results.

use std::fmt;

use limiter_core::MAX_COST;

use super::Plan;
use super::call_result::CallResult;
use super::transcript;
use crate::conformance::sentence::Sentence::{self, E1, E2};

/// A wrong result from a store, or another failed check. [`Display`](fmt::Display) prints every call up to it.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The name of the failing case. Empty for a plan without a name.
    pub(crate) title: String,
    /// The number of the wrong call.
    pub call: usize,
    /// The step of the case that the call belongs to.
    pub(crate) step: usize,
    /// The sentences that the case checks.
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
        let transcript = self.transcript.trim_end();
        f.write_str(&transcript.replace(&MAX_COST.to_string(), "2^52"))
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
    let citations: &[Sentence] = match (&last.expected, got) {
        (CallResult::Failed(..), _) => &[E2],
        (_, CallResult::Failed(..)) => &[E1],
        _ => &[],
    };
    Mismatch {
        call: plan.calls.len() - 1,
        step: last.step,
        ..Mismatch::new("", citations, transcript::of_last(plan, got))
    }
}
