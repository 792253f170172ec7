//! Where a store broke the contract.

use std::collections::BTreeMap;
use std::fmt;

use super::report::Phase;
use crate::conformance::sentence::{Cite, Sentence};
use crate::conformance::sequence::replay::Mismatch;

/// How many failing cases are shown in full, and of those how many that cite the same sentences.
const SHOWN: (usize, usize) = (10, 3);

/// The failing cases of one phase.
///
/// [`Display`](fmt::Display) prints them: the sentences of the contract, the calls that led there, and the expected answer
/// beside the store's. The likeliest sentence and its simplest case come first. Of more than ten cases the others are counted.
pub struct Failure {
    phase: Phase,
    ranked: Ranked,
    seed: u64,
}

impl Failure {
    pub(crate) fn new(phase: Phase, findings: Findings, seed: u64) -> Self {
        Self { phase, ranked: findings.ranked(), seed }
    }

    /// Returns the phase that found them.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the sentences that the failing cases are about, the likeliest first.
    #[must_use]
    pub fn sentences(&self) -> &[Sentence] {
        &self.ranked.sentences
    }

    /// Returns how many cases failed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ranked.count
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, ranked, seed } = self;
        let labels: Vec<&str> = ranked.sentences.iter().map(|sentence| sentence.label()).collect();
        match (ranked.count, labels.len()) {
            (1, _) => write!(f, "{phase:?}: one failing case")?,
            (count, _) => write!(f, "{phase:?}: {count} failing cases")?,
        }
        match &labels[..] {
            [] => writeln!(f)?,
            [one] => writeln!(f, ", about {one}")?,
            [first, others @ ..] => writeln!(f, ", probably about {first}; they touch {}", others.join(", "))?,
        }
        let (mut shown, mut by_cites) = (0, Vec::new());
        for finding in &ranked.findings {
            let same = by_cites.iter().filter(|cites| **cites == &finding.cites).count();
            if shown < SHOWN.0 && same < if finding.is_generated { 1 } else { SHOWN.1 } {
                shown += 1;
                writeln!(f, "\n{shown}) {finding}")?;
            }
            by_cites.push(&finding.cites);
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

/// How many failing cases are kept with their stories.
const KEPT: usize = 400;

/// One failing case.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Which case.
    pub(crate) title: String,
    /// The sentences that it is about.
    pub(crate) cites: Vec<Cite>,
    /// What the wrong answer alone suggests.
    suggested: Option<Cite>,
    /// How many calls came before the wrong answer; `None` for a check of its sentences alone.
    calls: Option<usize>,
    /// Whether the case was generated. Of several about the same sentences one tells as much as all.
    pub(crate) is_generated: bool,
    pub(crate) transcript: String,
}

impl Finding {
    /// A check of these sentences alone.
    pub(crate) fn new(title: impl Into<String>, cites: &[Cite], transcript: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            cites: cites.to_vec(),
            suggested: None,
            calls: None,
            is_generated: false,
            transcript: transcript.into(),
        }
    }

    /// A wrong answer of a generated sequence, which is about what the answer suggests.
    pub(crate) fn of(title: impl Into<String>, mismatch: Mismatch) -> Self {
        let cites = mismatch.cites.clone();
        Self { is_generated: true, ..Self::about(title, &cites, mismatch) }
    }

    /// A wrong answer of a case that is about `cites`.
    pub(crate) fn about(title: impl Into<String>, cites: &[Cite], mismatch: Mismatch) -> Self {
        let suggested = mismatch.cites.first().copied();
        let (cites, calls) = (cites.to_vec(), Some(mismatch.call));
        Self { title: title.into(), cites, suggested, calls, is_generated: false, transcript: mismatch.transcript }
    }

    /// How much the case says about each sentence: the less happened before, the more.
    fn evidence(&self) -> impl Iterator<Item = (Sentence, f64)> {
        let weight = self.calls.map_or(1_000.0, |calls| 1.0 / ((1 + calls) * (1 + calls)) as f64);
        let cited = self.cites.iter().map(move |cite| (cite.item, weight));
        cited.chain(self.suggested.map(|cite| (cite.item, 0.5 * weight)))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        for cite in &self.cites {
            writeln!(f, "{cite}")?;
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
        if self.kept.len() < KEPT {
            self.kept.push(finding);
        }
    }

    /// Counts failing cases without their stories.
    pub(crate) fn more(&mut self, count: u64) {
        self.count += count;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts the likeliest sentence, and its simplest case, first.
    pub(crate) fn ranked(self) -> Ranked {
        let mut evidence: BTreeMap<Sentence, f64> = BTreeMap::new();
        for (sentence, weight) in self.kept.iter().flat_map(Finding::evidence) {
            *evidence.entry(sentence).or_default() += weight;
        }
        let mut sentences: Vec<Sentence> = evidence.keys().copied().collect();
        sentences.sort_by(|one, other| evidence[other].total_cmp(&evidence[one]));
        let mut findings = self.kept;
        let rank = |finding: &Finding| {
            let place = |cite: &Cite| sentences.iter().position(|sentence| *sentence == cite.item);
            (finding.cites.iter().filter_map(place).min().unwrap_or(usize::MAX), finding.cites.len(), finding.calls)
        };
        findings.sort_by_key(rank);
        Ranked { findings, sentences, count: self.count }
    }
}

/// Failing cases, the most telling first.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    pub(crate) findings: Vec<Finding>,
    pub(crate) sentences: Vec<Sentence>,
    pub(crate) count: u64,
}
