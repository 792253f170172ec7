//! The surface: how long a decision takes over the number of keys, the entries of each log, the verdict and the threads.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use limiter_core::Limit;

use super::filled::Filled;
use super::libraries::{FOLDHASH, Library, PEERS};
use super::workload::{Requests, Workload};
use crate::record::{Figures, put};
use crate::turns::{self, Contestant, Run};

const KEYS: [usize; 5] = [1, 1024, 10_000, 100_000, 1_000_000];
const ENTRIES: [u32; 5] = [1, 4, 16, 64, 256];
const THREADS: [usize; 2] = [1, 2];
/// The most entries of all logs of a cell. More would take gigabytes.
const MOST_ENTRIES: usize = 1 << 25;
/// The fewest entries that a single busy key can have: the shortest window is a microsecond.
const FEWEST_OF_ONE_KEY: u32 = 64;

/// This library, the only one with a log, governor with both hashers, and trypema, in the order of the columns.
pub(crate) const LIBRARIES: [Library; 4] = [PEERS[0], PEERS[1], FOLDHASH, PEERS[3]];

/// A workload of the surface: random keys, each with a log of this many entries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) keys: usize,
    /// The entries of each log: exactly, if the limit is full, otherwise on average.
    pub(crate) entries: u32,
    /// Whether all requests are allowed. Otherwise every limit is full.
    pub(crate) allowed: bool,
    pub(crate) threads: usize,
}

impl fmt::Display for Cell {
    /// Its name: keys, entries, verdict and threads, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            keys,
            entries,
            allowed,
            threads,
        } = self;
        write!(
            f,
            "{keys} {entries} {} {threads}",
            if *allowed { "allowed" } else { "denied" }
        )
    }
}

impl Cell {
    /// Returns all cells.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let with_entries = |keys| ENTRIES.into_iter().map(move |entries| (keys, entries));
        let with_verdict = |(keys, entries)| [true, false].map(|allowed| (keys, entries, allowed));
        let cell = |(keys, entries, allowed)| {
            THREADS.map(|threads| Self {
                keys,
                entries,
                allowed,
                threads,
            })
        };
        KEYS.into_iter()
            .flat_map(with_entries)
            .flat_map(with_verdict)
            .flat_map(cell)
    }

    /// Whether the cell is not measured: it takes too much memory, or its window would be too short.
    fn is_left_out(&self) -> bool {
        let too_short = self.keys == 1 && self.allowed && self.entries < FEWEST_OF_ONE_KEY;
        too_short || self.requests_in_a_window() > MOST_ENTRIES
    }

    /// Returns the number of requests in which all entries expire.
    fn requests_in_a_window(&self) -> usize {
        self.keys * self.entries as usize
    }

    /// Whether a turn is so much longer than the window that it can begin with a whole window.
    fn has_short_window(&self) -> bool {
        self.requests_in_a_window() < 1 << 20
    }

    /// Returns a library's requests, with allowed entries that expire as fast as they come if a request comes every `each`.
    fn requests(&self, library: &Library, each: Duration) -> Requests {
        let micros = self.requests_in_a_window() as u128 * each.as_nanos() / 1000;
        let window = Duration::from_micros(micros.max(1) as u64);
        let (max, window) = match (self.allowed, library.keeps_log) {
            // The window decides how much the log holds. The maximum is out of reach even if the clock stands still for a while.
            (true, true) => (1_000_000, window),
            // As much as governor can express, which counts in nanoseconds.
            (true, false) => (window.as_nanos().min(1_000_000) as u64, window),
            (false, _) => (
                u64::from(self.entries),
                Duration::from_secs(3600) * if library.refills { 1000 } else { 1 },
            ),
        };
        Requests::new(Workload {
            limits: vec![Limit::new(max, window).expect("the window is a microsecond or longer")],
            keys: self.keys,
            cost: None,
            denied: !self.allowed,
            entries: Some(self.entries),
            threads: self.threads,
        })
    }

    /// Returns the number of unmeasured operations at the start of a turn.
    fn warm_up(&self, library: &Library) -> u64 {
        let starts_with_window = self.allowed && self.has_short_window() && library.keeps_log;
        let whole = if starts_with_window {
            self.requests_in_a_window()
        } else {
            0
        };
        whole.max(if self.keys > 1 { 1 << 15 } else { 1 << 12 }) as u64
    }

    /// Returns the number of operations in a turn of a millisecond or two: short enough that most turns are not interrupted
    /// on a busy machine.
    fn count(&self) -> u64 {
        match self.keys {
            1 => 1 << 16,
            2..=1024 => 1 << 15,
            _ => 1 << 14,
        }
    }

    /// Runs one turn. Returns nanoseconds per decision.
    fn turn(&self, library: &Library, filled: &mut Filled) -> f64 {
        filled.run(self.warm_up(library));
        filled.run(self.count()).as_nanos() as f64 / self.count() as f64
    }
}

/// Measures all cells.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    let mut cells = Cell::all().filter(|cell| !cell.is_left_out());
    cells.try_for_each(|cell| run.scenario(&cell.to_string(), || compare(&cell)))
}

/// Measures the libraries in turns.
fn compare(cell: &Cell) -> Result<Figures> {
    const GUESS: Duration = Duration::from_nanos(300);
    let fill = |library: &Library, each| Filled::new(*library, &cell.requests(library, each));
    let mut all = LIBRARIES.map(|library| fill(&library, GUESS));
    // The window of a log follows from the speed: of the library alone if each turn starts with a whole window.
    for _ in 0..if cell.allowed { 2 } else { 0 } {
        let start = Instant::now();
        let mut nanos = Vec::new();
        for _ in 0..5 {
            let turns: Vec<f64> = all
                .iter_mut()
                .zip(&LIBRARIES)
                .map(|(filled, of)| cell.turn(of, filled))
                .collect();
            nanos.push(turns[0]);
        }
        let each = if cell.has_short_window() {
            Duration::from_nanos(turns::median(&nanos) as u64)
        } else {
            start
                .elapsed()
                .div_f64(5.0 * (cell.warm_up(&LIBRARIES[0]) + cell.count()) as f64)
        };
        all[0] = fill(&LIBRARIES[0], each);
    }
    let start = Instant::now();
    let contestants = all.iter_mut().zip(&LIBRARIES).map(|(filled, library)| {
        let turn = move || Ok(vec![("ns", cell.turn(library, filled))]);
        Contestant {
            name: library.name,
            turn: Box::new(turn),
        }
    });
    let is_done = |round| round >= 5 && start.elapsed() >= Duration::from_secs(1);
    let mut figures = turns::measure(&mut contestants.collect::<Vec<_>>(), is_done)?;
    put(&mut figures, LIBRARIES[0].name, "held", all[0].held());
    Ok(figures)
}
