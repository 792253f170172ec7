//! The surface: how long a decision takes over the number of keys, the entries of each log, the verdict and the threads.

pub mod floor;
pub mod heat_map;
pub mod report;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::floor::Floor;
use crate::libraries::{Governor, GovernorFoldhash, Library, Now, Quota, Trypema};
use crate::measure::{Measured, median};
use crate::workload::{Requests, Workload, keys, uniform};

/// The numbers of keys.
pub const KEYS: [usize; 5] = [1, 1024, 10_000, 100_000, 1_000_000];

/// The numbers of entries per log.
pub const ENTRIES: [u32; 5] = [1, 4, 16, 64, 256];

/// The numbers of threads.
pub const THREADS: [usize; 2] = [1, 2];

/// The most entries of all logs of a cell. More would take gigabytes.
const MOST_ENTRIES: usize = 1 << 25;

/// The fewest entries that a single busy key can have: the shortest window is a microsecond.
const FEWEST_OF_ONE_KEY: u32 = 64;

/// A workload of the surface: random keys, each with a log of this many entries.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Cell {
    /// The number of keys.
    pub keys: usize,
    /// The entries of each log: exactly, if the limit is used up, and about as many on average otherwise.
    pub entries: u32,
    /// Whether all requests are allowed. Otherwise every limit is used up.
    pub allowed: bool,
    /// The number of threads.
    pub threads: usize,
}

/// A measured cell.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Figures {
    /// The workload.
    pub cell: Cell,
    /// The mean entries of this library's logs when the measurement ended.
    pub held: f64,
    /// The medians of all libraries.
    pub medians: Vec<Measured>,
}

/// All cells of a run.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Surface {
    /// The cells that were measured.
    pub cells: Vec<Figures>,
}

impl Surface {
    /// Returns the figures of a cell.
    #[must_use]
    pub fn of(&self, cell: Cell) -> Option<&Figures> {
        self.cells.iter().find(|figures| figures.cell == cell)
    }
}

impl Figures {
    /// Returns the median of a library.
    #[must_use]
    pub fn nanos(&self, library: &str) -> Option<f64> {
        self.medians.iter().find(|measured| measured.library == library).map(|measured| measured.nanos)
    }

    /// Returns this library's median as a multiple of another's.
    #[must_use]
    pub fn ratio(&self, other: &str) -> Option<f64> {
        Some(self.nanos(Now::NAME)? / self.nanos(other)?)
    }
}

impl fmt::Display for Cell {
    /// Keys, entries, verdict and threads, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, entries, allowed, threads } = self;
        write!(f, "{keys} {entries} {} {threads}", if *allowed { "allowed" } else { "denied" })
    }
}

impl Cell {
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

    fn workload(&self, keys: &Arc<Vec<String>>, requests: &Requests, window: Duration) -> Workload {
        let quota = if self.allowed {
            // As much as governor can express, which counts in nanoseconds.
            Quota::new(window.as_nanos().min(1_000_000) as u32, window)
        } else {
            Quota::new(self.entries, Duration::from_secs(3600))
        };
        let (keys, requests) = (Arc::clone(keys), requests.clone());
        Workload { quota, keys, requests, allowed: self.allowed, filled: 1, threads: self.threads, sweep: false }
    }
}

/// Something to measure in all cells.
#[derive(Clone, Copy)]
pub struct Contestant {
    name: &'static str,
    keeps_log: bool,
    prepare: fn(&Cell, Workload) -> Prepared,
}

struct Prepared {
    /// Runs this many operations on this many threads.
    run: Box<dyn FnMut(usize, u64) -> Duration>,
    /// Returns the mean entries of a key.
    held: Box<dyn Fn() -> f64>,
}

impl Contestant {
    /// Returns a contestant.
    #[must_use]
    pub fn new<L: Library>() -> Self {
        Self { name: L::NAME, keeps_log: L::KEEPS_LOG, prepare: prepare::<L> }
    }

    /// Returns the library's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

fn prepare<L: Library>(cell: &Cell, mut workload: Workload) -> Prepared {
    if cell.allowed && L::KEEPS_LOG {
        // The window decides how much the log holds. The maximum is out of reach even if the clock stands still for a while.
        workload.quota.max = 1_000_000;
    } else if !cell.allowed && L::REFILLS {
        workload.quota.window *= 1000;
    }
    let library = Arc::new(L::with_logs(workload.quota, &workload.keys, cell.entries, cell.allowed));
    let (held_by, held_keys, mut from) = (Arc::clone(&library), Arc::clone(&workload.keys), 0);
    let run = move |threads, count| {
        workload.threads = threads;
        from += count as usize;
        workload.run(&*library, from, count)
    };
    let held = move || {
        let sample = held_keys.iter().step_by(held_keys.len().div_ceil(1000));
        let entries: Vec<usize> = sample.map(|key| held_by.entries(key)).collect();
        entries.iter().sum::<usize>() as f64 / entries.len() as f64
    };
    Prepared { run: Box::new(run), held: Box::new(held) }
}

/// Returns this library, its peers and the floor.
#[must_use]
pub fn contestants() -> Vec<Contestant> {
    vec![
        Contestant::new::<Now>(),
        Contestant::new::<Governor>(),
        Contestant::new::<GovernorFoldhash>(),
        Contestant::new::<Trypema<100>>(),
        Contestant::new::<Floor>(),
    ]
}

/// How long to measure, and which cells.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The time for the turns of a cell.
    pub cell: Duration,
    /// Whether to leave out most of the cells that take long to fill.
    pub quick: bool,
}

/// Measures all cells that `selects`.
#[must_use]
pub fn measure(effort: Effort, contestants: &[Contestant], selects: impl Fn(&Cell) -> bool) -> Surface {
    let mut surface = Surface::default();
    for count in KEYS {
        let keys = keys(count);
        let picks = uniform(count, if count <= 1024 { 1 << 16 } else { 1 << 20 });
        let requests = if count == 1 { Requests::One } else { Requests::in_order(&keys, &picks) };
        for entries in ENTRIES {
            let skipped = effort.quick && (entries == 16 || entries == 256 || count == 1_000_000 && entries > 1);
            for allowed in [true, false] {
                let cells = THREADS.map(|threads| Cell { keys: count, entries, allowed, threads });
                let cells: Vec<Cell> = cells.into_iter().filter(|cell| !cell.is_left_out() && selects(cell)).collect();
                if !skipped && !cells.is_empty() {
                    surface.cells.extend(measure_cells(effort, contestants, &cells, &keys, &requests));
                }
            }
        }
    }
    surface
}

/// Measures cells that differ in their threads only.
fn measure_cells(
    effort: Effort,
    contestants: &[Contestant],
    cells: &[Cell],
    keys: &Arc<Vec<String>>,
    requests: &Requests,
) -> Vec<Figures> {
    const GUESS: Duration = Duration::from_nanos(300);
    let guess = |cell: &Cell| window(cell.requests_in_a_window(), GUESS);
    let mut all: Vec<Prepared> = contestants
        .iter()
        .map(|contestant| (contestant.prepare)(&cells[0], cells[0].workload(keys, requests, guess(&cells[0]))))
        .collect();
    let mut figures = Vec::new();
    for cell in cells {
        eprintln!("{cell}");
        let warm = |contestant: &Contestant| {
            let whole = if cell.allowed && cell.has_short_window() && contestant.keeps_log {
                cell.requests_in_a_window()
            } else {
                0
            };
            whole.max(if cell.keys > 1 { 1 << 15 } else { 1 << 12 }) as u64
        };
        // A turn of a millisecond or two: short enough that most turns are not interrupted on a busy machine.
        let count = if cell.keys == 1 {
            1 << 16
        } else if cell.keys <= 1024 {
            1 << 15
        } else {
            1 << 14
        };
        let turn = |prepared: &mut Prepared, contestant: &Contestant| {
            (prepared.run)(cell.threads, warm(contestant));
            (prepared.run)(cell.threads, count).as_nanos() as f64 / count as f64
        };
        if cell.allowed {
            for _ in 0..if cell.has_short_window() { 2 } else { 1 } {
                let start = Instant::now();
                let mut typical = |(prepared, contestant): (&mut Prepared, &Contestant)| {
                    median(&mut (0..5).map(|_| turn(prepared, contestant)).collect::<Vec<_>>())
                };
                let nanos: Vec<f64> = all.iter_mut().zip(contestants).map(&mut typical).collect();
                let round = start.elapsed() / 5;
                for (i, contestant) in contestants.iter().enumerate().filter(|(_, contestant)| contestant.keeps_log) {
                    let each = if cell.has_short_window() {
                        Duration::from_nanos(nanos[i] as u64)
                    } else {
                        round.div_f64((warm(contestant) + count) as f64)
                    };
                    let window = window(cell.requests_in_a_window(), each);
                    all[i] = (contestant.prepare)(cell, cell.workload(keys, requests, window));
                }
            }
        }
        let mut samples = vec![Vec::new(); all.len()];
        let start = Instant::now();
        for round in 0.. {
            if round >= 5 && start.elapsed() >= effort.cell {
                break;
            }
            for i in (0..all.len()).map(|i| (round + i) % contestants.len()) {
                let nanos = turn(&mut all[i], &contestants[i]);
                samples[i].push(nanos);
            }
        }
        let medians = contestants.iter().zip(&mut samples);
        let medians = medians
            .map(|(contestant, samples)| Measured { library: contestant.name.to_owned(), nanos: median(samples) });
        figures.push(Figures { cell: *cell, held: (all[0].held)(), medians: medians.collect() });
    }
    figures
}

/// Returns the window in which this many requests come, one every `each`.
fn window(requests: usize, each: Duration) -> Duration {
    let micros = requests as u128 * each.as_nanos() / 1000;
    Duration::from_micros(micros.max(1) as u64)
}
