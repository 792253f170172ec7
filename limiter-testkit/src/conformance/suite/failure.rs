//! The failing cases of a store.

use std::collections::BTreeMap;
use std::fmt;

use super::report::Phase;
use crate::conformance::sentence::{Citation, Sentence};
use crate::conformance::sequence::replay::Mismatch;

/// The number of failing cases printed in full, and how many of those may cite the same sentences.
const MAX_SHOWN: (usize, usize) = (10, 3);

/// The failing cases of one phase.
///
/// [`Display`](fmt::Display) prints the sentences of the contract, the preceding calls, and the expected answer
/// beside the store's. The likeliest sentence comes first, with its simplest case. Prints at most ten cases and
/// counts the rest.
pub struct Failure {
    phase: Phase,
    ranked: Ranked,
    seed: u64,
}

impl Failure {
    pub(crate) fn new(phase: Phase, findings: Findings, seed: u64) -> Self {
        Self { phase, ranked: findings.ranked(), seed }
    }

    /// Returns the phase that failed.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the sentences that the failing cases cite, likeliest first.
    #[must_use]
    pub fn sentences(&self) -> &[Sentence] {
        &self.ranked.sentences
    }

    /// Returns the number of failing cases.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ranked.count
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, ranked, seed } = self;
        let labels: Vec<&str> = ranked.sentences.iter().map(|sentence| sentence.label()).collect();
        match ranked.count {
            1 => write!(f, "{phase:?}: one failing case")?,
            count => write!(f, "{phase:?}: {count} failing cases")?,
        }
        match &labels[..] {
            [] => writeln!(f)?,
            [one] => writeln!(f, ", about {one}")?,
            [first, others @ ..] => writeln!(f, ", probably about {first}; they touch {}", others.join(", "))?,
        }
        let (mut shown, mut shown_citations) = (0, Vec::new());
        for finding in &ranked.findings {
            let same = shown_citations.iter().filter(|citations| **citations == &finding.citations).count();
            if shown < MAX_SHOWN.0 && same < if finding.is_generated { 1 } else { MAX_SHOWN.1 } {
                shown += 1;
                writeln!(f, "\n{shown}) {finding}")?;
            }
            shown_citations.push(&finding.citations);
        }
        if ranked.count > shown as u64 {
            writeln!(f, "\nand {} more", ranked.count - shown as u64)?;
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

/// The number of failing cases kept with their transcripts.
const MAX_KEPT: usize = 400;

/// One failing case.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// The name of the case.
    pub(crate) title: String,
    /// The sentences that the case checks.
    pub(crate) citations: Vec<Citation>,
    /// The sentence that the wrong answer alone suggests.
    suggested: Option<Citation>,
    /// The number of calls before the wrong answer; `None` for a check without a sequence.
    calls: Option<usize>,
    /// Whether the case was generated. Of several generated cases about the same sentences, one is enough.
    pub(crate) is_generated: bool,
    pub(crate) transcript: String,
}

impl Finding {
    /// Returns a failed check of exactly these sentences.
    pub(crate) fn new(title: impl Into<String>, citations: &[Citation], transcript: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            citations: citations.to_vec(),
            suggested: None,
            calls: None,
            is_generated: false,
            transcript: transcript.into(),
        }
    }

    /// Returns a wrong answer in a generated sequence. Cites the sentences that the answer suggests.
    pub(crate) fn of(title: impl Into<String>, mismatch: Mismatch) -> Self {
        let citations = mismatch.citations.clone();
        Self { is_generated: true, ..Self::about(title, &citations, mismatch) }
    }

    /// Returns a wrong answer in a case that checks `citations`.
    pub(crate) fn about(title: impl Into<String>, citations: &[Citation], mismatch: Mismatch) -> Self {
        let suggested = mismatch.citations.first().copied();
        let (citations, calls) = (citations.to_vec(), Some(mismatch.call));
        Self { title: title.into(), citations, suggested, calls, is_generated: false, transcript: mismatch.transcript }
    }

    /// Returns how strongly the case points to each sentence. The fewer calls before the mismatch, the stronger.
    fn evidence(&self) -> impl Iterator<Item = (Sentence, f64)> {
        let weight = self.calls.map_or(1_000.0, |calls| 1.0 / ((1 + calls) * (1 + calls)) as f64);
        let cited = self.citations.iter().map(move |citation| (citation.item, weight));
        cited.chain(self.suggested.map(|citation| (citation.item, 0.5 * weight)))
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

    /// Sorts the likeliest sentence, and its simplest case, to the front.
    pub(crate) fn ranked(self) -> Ranked {
        let mut evidence: BTreeMap<Sentence, f64> = BTreeMap::new();
        for (sentence, weight) in self.kept.iter().flat_map(Finding::evidence) {
            *evidence.entry(sentence).or_default() += weight;
        }
        let mut sentences: Vec<Sentence> = evidence.keys().copied().collect();
        sentences.sort_by(|one, other| evidence[other].total_cmp(&evidence[one]));
        let mut findings = self.kept;
        let rank = |finding: &Finding| {
            let place = |citation: &Citation| sentences.iter().position(|sentence| *sentence == citation.item);
            (
                finding.citations.iter().filter_map(place).min().unwrap_or(usize::MAX),
                finding.citations.len(),
                finding.calls,
            )
        };
        findings.sort_by_key(rank);
        Ranked { findings, sentences, count: self.count }
    }
}

/// Failing cases, most conclusive first.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    pub(crate) findings: Vec<Finding>,
    pub(crate) sentences: Vec<Sentence>,
    pub(crate) count: u64,
}
