//! Measures the contestants of a scenario in turns, so that other load on the machine affects all of them equally.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::record::{Figures, Results, put};

/// A run over scenarios, and its results so far.
pub struct Run<'a> {
    only: Option<&'a str>,
    pub(crate) results: Results,
    /// The version of the server, if there is one.
    pub(crate) server: Option<String>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(only: Option<&'a str>) -> Self {
        Self {
            only,
            results: Results::new(),
            server: None,
        }
    }

    /// Measures a scenario if its name contains the wanted text.
    ///
    /// # Errors
    /// If it cannot be measured.
    pub fn scenario(
        &mut self,
        name: &str,
        measure: impl FnOnce() -> Result<Figures>,
    ) -> Result<()> {
        if self.only.is_none_or(|only| name.contains(only)) {
            eprintln!("{name}");
            self.results
                .insert(name.to_owned(), measure().with_context(|| name.to_owned())?);
        }
        Ok(())
    }
}

/// The figures of one turn, by measure.
pub type Turn = Vec<(&'static str, f64)>;

/// The contestants of a scenario.
pub struct Contestant<'a> {
    /// Its name in the tables.
    pub name: &'a str,
    /// Makes one turn.
    pub turn: Box<dyn FnMut() -> Result<Turn> + 'a>,
}

impl<'a> Contestant<'a> {
    /// Returns a contestant whose turns take about `turn`. `run` makes a number of operations.
    pub fn timed(name: &'a str, turn: Duration, mut run: impl FnMut(u64) -> Duration + 'a) -> Self {
        // Finding the number of operations also warms up.
        let mut count = 64;
        let elapsed = loop {
            let elapsed = run(count);
            if elapsed >= turn / 4 {
                break elapsed;
            }
            count *= 4;
        };
        let count = ((count as f64 * turn.as_secs_f64() / elapsed.as_secs_f64()) as u64).max(1);
        let turn = move || Ok(vec![("ns", run(count).as_nanos() as f64 / count as f64)]);
        Self {
            name,
            turn: Box::new(turn),
        }
    }
}

/// The measures whose ratios are recorded.
const RATIOS: [&str; 2] = ["script", "processor"];

/// Measures all contestants in turns until the predicate is true of the number of rounds. Returns the medians, and for
/// [`RATIOS`] the median and the quartiles of the ratios of the first contestant to each other, round by round.
///
/// # Errors
/// If a turn fails.
pub fn measure(all: &mut [Contestant<'_>], is_done: impl Fn(usize) -> bool) -> Result<Figures> {
    let mut turns = vec![Vec::new(); all.len()];
    for round in 0.. {
        if is_done(round) {
            break;
        }
        for turn in 0..all.len() {
            // Every other round in the opposite order.
            let i = if round % 2 == 0 {
                round + turn
            } else {
                round + all.len() - turn
            } % all.len();
            turns[i].push((all[i].turn)().with_context(|| all[i].name.to_owned())?);
        }
    }
    let samples = |turns: &[Turn], measure| -> Vec<f64> {
        turns
            .iter()
            .flatten()
            .filter(|figure| figure.0 == measure)
            .map(|figure| figure.1)
            .collect()
    };
    let mut figures = Figures::new();
    for (contestant, own_turns) in all.iter().zip(&turns) {
        for (measure, _) in own_turns.first().into_iter().flatten() {
            let own = samples(own_turns, *measure);
            put(&mut figures, contestant.name, measure, median(&own));
            if RATIOS.contains(measure) && contestant.name != all[0].name {
                let ratios: Vec<f64> = samples(&turns[0], *measure)
                    .iter()
                    .zip(&own)
                    .map(|(a, b)| a / b)
                    .collect();
                for (suffix, quarters) in [("", 2), (", low", 1), (", high", 3)] {
                    let name = format!("{measure} to {}{suffix}", contestant.name);
                    put(
                        &mut figures,
                        all[0].name,
                        &name,
                        quantile(&ratios, quarters),
                    );
                }
            }
        }
    }
    Ok(figures)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 2)
}

fn quantile(values: &[f64], quarters: usize) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
        .get(values.len() * quarters / 4)
        .copied()
        .unwrap_or(f64::NAN)
}
