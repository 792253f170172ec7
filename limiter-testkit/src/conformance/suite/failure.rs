//! The failing cases of a store.

use std::collections::HashSet;
use std::fmt;

use super::report::Phase;
use crate::conformance::sentence::Sentence;
use crate::conformance::sequence::replay::Mismatch;

/// The number of failing cases that are printed.
const MAX_SHOWN: usize = 10;

/// The failing cases of one phase.
///
/// [`Display`](fmt::Display) prints the contract's sentences, the preceding calls, and the expected result next to the store's.
/// The shortest case for each sentence comes first. Prints at most ten cases and counts the rest.
pub struct Failure {
    phase: Phase,
    findings: Vec<Finding>,
    sentences: Vec<Sentence>,
    seed: u64,
}

impl Failure {
    pub(crate) fn new(phase: Phase, mut findings: Vec<Finding>, seed: u64) -> Self {
        // The shortest case for each sentence comes first.
        findings.sort_by_key(|finding| finding.mismatch.call);
        let mut seen = HashSet::new();
        findings.sort_by_cached_key(|finding| !seen.insert(finding.mismatch.citations.first().copied()));
        let count = |sentence: &Sentence| {
            findings.iter().filter(|finding| finding.mismatch.citations.contains(sentence)).count()
        };
        let mut sentences: Vec<Sentence> =
            Sentence::ALL.iter().copied().filter(|sentence| count(sentence) > 0).collect();
        sentences.sort_by_key(|sentence| std::cmp::Reverse(count(sentence)));
        Self { phase, findings, sentences, seed }
    }

    /// Returns the phase that failed.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the sentences that the failing cases cite, the most frequent first.
    #[must_use]
    pub fn sentences(&self) -> &[Sentence] {
        &self.sentences
    }

    /// Returns the number of failing cases.
    #[must_use]
    pub fn count(&self) -> usize {
        self.findings.len()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, findings, sentences, seed } = self;
        let labels: Vec<&str> = sentences.iter().map(|sentence| sentence.label()).collect();
        let cases = if findings.len() == 1 { "one failing case" } else { &format!("{} failing cases", findings.len()) };
        writeln!(f, "{phase:?}: {cases}, citing {}", labels.join(", "))?;
        for (number, finding) in findings.iter().take(MAX_SHOWN).enumerate() {
            writeln!(f, "\n{}) {finding}", number + 1)?;
        }
        if findings.len() > MAX_SHOWN {
            writeln!(f, "\nand {} more", findings.len() - MAX_SHOWN)?;
        }
        write!(f, "\nrun this phase alone with Suite::phases(&[Phase::{phase:?}])")?;
        if phase.is_random() { write!(f, " and Suite::seed({seed})") } else { Ok(()) }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Failure {}

/// One failing case: its name, and its errors.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) title: String,
    pub(crate) mismatch: Mismatch,
}

impl Finding {
    /// Returns a failed check of these sentences, without a sequence.
    pub(crate) fn new(title: impl Into<String>, citations: &[Sentence], transcript: impl Into<String>) -> Self {
        Self { title: title.into(), mismatch: Mismatch::new(citations, transcript) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.title, self.mismatch)
    }
}
