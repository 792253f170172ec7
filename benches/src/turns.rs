//! Measures the contestants of a scenario in turns, so that other load on the machine affects all of them equally.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::record::{Figures, put};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The program's argument that selects it.
    pub argument: &'static str,
    /// The number of turns per contestant in memory, and their duration.
    pub rounds: usize,
    /// See [`rounds`](Self::rounds).
    pub turn: Duration,
    /// The time for the turns of a cell of the surface.
    pub cell: Duration,
    /// Whether to measure those cells of the surface that take long to fill.
    pub all_cells: bool,
    /// The most keys of a scenario.
    pub keys: usize,
    /// The number of turns per contestant in Redis where the server's time is measured, and the decisions of a turn. Few,
    /// so that other load interrupts few turns.
    pub server: (usize, usize),
    /// The same where clients are measured. With more than one task, a turn has four times as many decisions.
    pub clients: (usize, usize),
}

impl Effort {
    /// Each group takes less than three minutes.
    pub const QUICK: Self = Self {
        argument: "--quick",
        rounds: 31,
        turn: Duration::from_millis(10),
        cell: Duration::from_secs(1),
        all_cells: false,
        keys: 1_000_000,
        server: (151, 300),
        clients: (15, 2000),
    };
    /// Takes more turns.
    pub const FULL: Self = Self {
        argument: "--full",
        rounds: 201,
        turn: Duration::from_millis(20),
        cell: Duration::from_secs(3),
        all_cells: true,
        server: (381, 200),
        clients: (61, 3000),
        ..Self::QUICK
    };
    /// Checks that everything works.
    pub const TEST: Self = Self {
        argument: "--test",
        rounds: 1,
        turn: Duration::from_micros(10),
        cell: Duration::ZERO,
        keys: 200,
        server: (2, 20),
        clients: (2, 300),
        ..Self::QUICK
    };
}

/// The figures of one turn, by measure.
pub(crate) type Turn = Vec<(&'static str, f64)>;

/// One contestant of a scenario.
pub(crate) struct Case<'a> {
    /// Its name in the tables.
    pub(crate) who: &'a str,
    /// Makes one turn.
    pub(crate) turn: Box<dyn FnMut() -> Result<Turn> + 'a>,
}

/// The measures whose ratios are recorded.
const RATIOS: [&str; 4] = ["script", "processor", "rate", "each"];

/// Measures all cases in turns until the predicate is true of the number of rounds. Returns the medians, and for [`RATIOS`]
/// the median and the quartiles of the ratios of the first case to each other, round by round.
pub(crate) fn measure(cases: &mut [Case<'_>], is_done: impl Fn(usize) -> bool) -> Result<Figures> {
    let mut turns = vec![Vec::new(); cases.len()];
    for round in 0.. {
        if is_done(round) {
            break;
        }
        for turn in 0..cases.len() {
            // Every other round in the opposite order.
            let i = if round % 2 == 0 { round + turn } else { round + cases.len() - turn } % cases.len();
            turns[i].push((cases[i].turn)().with_context(|| cases[i].who.to_owned())?);
        }
    }
    let samples = |turns: &[Turn], measure| -> Vec<f64> {
        turns.iter().flatten().filter(|figure| figure.0 == measure).map(|figure| figure.1).collect()
    };
    let mut figures = Figures::new();
    for (case, own) in cases.iter().zip(&turns) {
        for (measure, _) in own.first().into_iter().flatten() {
            let all = samples(own, *measure);
            put(&mut figures, case.who, measure, median(&all));
            if RATIOS.contains(measure) && case.who != cases[0].who {
                let ratios: Vec<f64> = samples(&turns[0], *measure).iter().zip(&all).map(|(a, b)| a / b).collect();
                for (suffix, quarters) in [("", 2), (", low", 1), (", high", 3)] {
                    let name = format!("{measure} to {}{suffix}", case.who);
                    put(&mut figures, cases[0].who, &name, quantile(&ratios, quarters));
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
    values.get(values.len() * quarters / 4).copied().unwrap_or(f64::NAN)
}
