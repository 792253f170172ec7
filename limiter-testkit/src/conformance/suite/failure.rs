//! The failing cases of a store.

use std::collections::HashSet;
use std::fmt;

use super::report::Phase;
use crate::conformance::mismatch::Mismatch;
use crate::sentence::Sentence;

/// The number of failing cases that are printed.
const MAX_SHOWN: usize = 10;

/// The failing cases of one phase.
///
/// [`Display`](fmt::Display) prints the contract's sentences, the preceding calls, and the expected result next to the store's.
/// A shrunk case comes first, then the shortest case for each sentence. Prints at most ten cases and counts the rest.
pub struct Failure {
    phase: Phase,
    mismatches: Vec<Mismatch>,
    sentences: Vec<Sentence>,
    seed: u64,
}

impl Failure {
    pub(crate) fn new(phase: Phase, mut mismatches: Vec<Mismatch>, seed: u64) -> Self {
        // A shrunk case comes first, because it has a script; then the shortest case for each sentence.
        mismatches.sort_by_key(|mismatch| (!mismatch.is_shrunk, mismatch.call));
        let mut seen = HashSet::new();
        mismatches.sort_by_cached_key(|mismatch| !seen.insert(mismatch.cited().first().copied()));
        let cited: HashSet<Sentence> = mismatches
            .iter()
            .flat_map(|mismatch| mismatch.cited().to_vec())
            .collect();
        let all = Sentence::ALL.iter().copied();
        let sentences = all.filter(|sentence| cited.contains(sentence)).collect();
        Self {
            phase,
            mismatches,
            sentences,
            seed,
        }
    }

    /// Returns the sentences that the failing cases cite, in the order of the contract.
    #[must_use]
    pub fn sentences(&self) -> &[Sentence] {
        &self.sentences
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            phase,
            mismatches,
            sentences,
            seed,
        } = self;
        let labels: Vec<&str> = sentences.iter().map(|sentence| sentence.label()).collect();
        write!(f, "{phase:?}: {} failing cases", mismatches.len())?;
        if !labels.is_empty() {
            write!(f, ", citing {}", labels.join(", "))?;
        }
        writeln!(f)?;
        for (number, mismatch) in mismatches.iter().take(MAX_SHOWN).enumerate() {
            writeln!(f, "\n{}) {mismatch}", number + 1)?;
        }
        if mismatches.len() > MAX_SHOWN {
            writeln!(f, "\nand {} more", mismatches.len() - MAX_SHOWN)?;
        }
        write!(
            f,
            "\nrun this phase alone with Suite::phases(&[Phase::{phase:?}]) and Suite::seed({seed})"
        )
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Failure {}
