//! The failing cases of a store.

use std::collections::HashSet;
use std::fmt;

use super::report::Phase;
use crate::conformance::sentence::{Citation, Sentence};
use crate::conformance::sequence::replay::Mismatch;

/// The number of failing cases that are printed.
const MAX_SHOWN: usize = 10;
/// The number of failing cases that are kept with their transcripts.
const MAX_KEPT: usize = 400;

/// The failing cases of one phase.
///
/// [`Display`](fmt::Display) prints the sentences of the contract, the preceding calls, and the expected answer
/// beside the store's. The shortest case for each sentence comes first. Prints at most ten cases and counts the rest.
pub struct Failure {
    phase: Phase,
    findings: Vec<Finding>,
    sentences: Vec<Sentence>,
    count: u64,
    seed: u64,
}

impl Failure {
    pub(crate) fn new(phase: Phase, findings: Findings, seed: u64) -> Self {
        let Findings { mut kept, count } = findings;
        kept.sort_by_key(|finding| finding.calls);
        // One case for each sentence comes first.
        let mut seen = HashSet::new();
        let (mut firsts, others): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|finding| seen.insert(finding.citations.first().map(|citation| citation.item)));
        firsts.extend(others);
        let kept = firsts;
        let cited = |sentence: &Sentence| {
            kept.iter().filter(|finding| finding.citations.iter().any(|citation| citation.item == *sentence)).count()
        };
        let mut sentences: Vec<Sentence> =
            Sentence::ALL.iter().copied().filter(|sentence| cited(sentence) > 0).collect();
        sentences.sort_by_key(|sentence| std::cmp::Reverse(cited(sentence)));
        Self { phase, findings: kept, sentences, count, seed }
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
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, findings, sentences, count, seed } = self;
        let labels: Vec<&str> = sentences.iter().map(|sentence| sentence.label()).collect();
        let cases = if *count == 1 { "one failing case".to_owned() } else { format!("{count} failing cases") };
        writeln!(f, "{phase:?}: {cases}, citing {}", labels.join(", "))?;
        let shown = &findings[..findings.len().min(MAX_SHOWN)];
        for (number, finding) in shown.iter().enumerate() {
            writeln!(f, "\n{}) {finding}", number + 1)?;
        }
        if *count > shown.len() as u64 {
            writeln!(f, "\nand {} more", count - shown.len() as u64)?;
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

/// One failing case.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// The name of the case.
    pub(crate) title: String,
    /// The sentences that the case checks, or that the wrong answer suggests.
    pub(crate) citations: Vec<Citation>,
    /// The number of calls before the wrong answer; 0 for a check without a sequence.
    calls: usize,
    transcript: String,
}

impl Finding {
    /// Returns a failed check of these sentences.
    pub(crate) fn new(title: impl Into<String>, citations: &[Citation], transcript: impl Into<String>) -> Self {
        Self { title: title.into(), citations: citations.to_vec(), calls: 0, transcript: transcript.into() }
    }

    /// Returns a wrong answer in a sequence.
    pub(crate) fn of(title: impl Into<String>, mismatch: Mismatch) -> Self {
        let Mismatch { call, citations, transcript, .. } = mismatch;
        Self { title: title.into(), citations, calls: call, transcript }
    }

    pub(crate) fn titled(mut self, title: String) -> Self {
        self.title = title;
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        for citation in &self.citations {
            writeln!(f, "{citation}")?;
        }
        write!(f, "{}", self.transcript.trim_end())
    }
}

/// The failing cases of a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    count: u64,
}

impl Findings {
    pub(crate) fn push(&mut self, finding: Finding) {
        self.count += 1;
        if self.kept.len() < MAX_KEPT {
            self.kept.push(finding);
        }
    }

    /// Counts failing cases without keeping them.
    pub(crate) fn more(&mut self, count: u64) {
        self.count += count;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}
