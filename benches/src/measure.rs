//! Measures all cases of a scenario in turns, so that other load on the machine affects all of them equally.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scenario::{Case, Scenario};

/// The effort of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The number of turns per case.
    pub rounds: usize,
    /// The duration of a turn.
    pub turn: Duration,
}

/// The median of one case of a scenario.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    /// The library.
    pub library: String,
    /// Nanoseconds per operation.
    pub nanos: f64,
}

/// The medians of a scenario's cases.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// The scenario's name.
    pub name: String,
    /// The workload.
    pub about: String,
    /// The cases, in order.
    pub medians: Vec<Measured>,
}

impl Row {
    /// Returns the median of a library, if the scenario has a case for it.
    #[must_use]
    pub fn of(&self, library: &str) -> Option<f64> {
        self.medians.iter().find(|measured| measured.library == library).map(|measured| measured.nanos)
    }
}

/// Measures a scenario.
#[must_use]
pub fn measure(scenario: &Scenario, effort: Effort) -> Row {
    let mut cases = (scenario.cases)();
    let counts: Vec<u64> = cases.iter_mut().map(|case| operations(case, effort.turn)).collect();
    let mut samples = vec![Vec::new(); cases.len()];
    let fixed = cases.iter().any(|case| case.operations.is_some());
    let rounds = if fixed { effort.rounds.isqrt() / 2 + 1 } else { effort.rounds };
    for round in 0..rounds {
        for turn in 0..cases.len() {
            let i = (round + turn) % cases.len();
            let elapsed = (cases[i].run)(counts[i]);
            samples[i].push(elapsed.as_nanos() as f64 / counts[i] as f64);
        }
    }
    let medians = cases.iter().zip(&mut samples);
    let medians = medians.map(|(case, samples)| Measured { library: case.library.to_owned(), nanos: median(samples) });
    Row { name: scenario.name.to_owned(), about: scenario.about.to_owned(), medians: medians.collect() }
}

/// Returns the number of operations in a turn. Measuring it also warms up.
fn operations(case: &mut Case, turn: Duration) -> u64 {
    if let Some(fixed) = case.operations {
        return fixed;
    }
    let mut count = 64;
    loop {
        let elapsed = (case.run)(count);
        if elapsed >= turn / 4 {
            return ((count as f64 * turn.as_secs_f64() / elapsed.as_secs_f64()) as u64).max(1);
        }
        count *= 4;
    }
}

pub(crate) fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
