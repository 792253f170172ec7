//! Where a store broke the contract.

use std::fmt;

use super::Phase;
use super::findings::{Findings, Ranked};
use crate::conformance::sentence::Sentence;

/// How many failing cases are shown in full, and of those how many that cite the same sentences.
const SHOWN: (usize, usize) = (10, 3);

/// A part of the suite found a store at fault.
///
/// It prints the failing cases: the sentence, the calls that led there, and the expected answer beside the store's. The
/// likeliest sentence and its simplest case come first. Beyond ten, cases are only counted.
pub struct Failure {
    phase: Phase,
    ranked: Ranked,
    seed: u64,
}

impl Failure {
    pub(crate) fn new(phase: Phase, findings: Findings, seed: u64) -> Self {
        Self { phase, ranked: findings.ranked(), seed }
    }

    /// Returns the part of the suite that found it.
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
        write!(f, "\nrun this part alone with Suite::phases(&[Phase::{phase:?}])")?;
        if phase.is_random() { write!(f, " and Suite::seed({seed})") } else { Ok(()) }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Failure {}
