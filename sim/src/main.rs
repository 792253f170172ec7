//! Plays one history to read, or many.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use sim::{History, Tally};

/// Plays the whole stack over a simulated Redis, from a seed.
#[derive(Parser)]
struct Args {
    /// Plays the history of this seed, and prints it.
    #[arg(long)]
    seed: Option<u64>,
    /// Leaves out what that history does not need to fail.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Plays this many histories on all cores, with the seeds from --from on.
    #[arg(long, default_value_t = 300, conflicts_with = "seed")]
    seeds: u64,
    /// The first seed of many.
    #[arg(long, default_value_t = 0)]
    from: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let mut history = History::new(seed);
        if args.shrink {
            history = history.shrink();
        }
        let outcome = history.play(true, None);
        print!("{}", outcome.trace);
        anyhow::ensure!(
            outcome.broken.is_empty(),
            "seed {seed}: {}",
            outcome.broken.join("\n")
        );
        return Ok(());
    }
    let next = AtomicU64::new(args.from);
    let total = Mutex::new(Totals::default());
    let bar = ProgressBar::new(args.seeds);
    bar.set_style(ProgressStyle::with_template(
        "{wide_bar} {pos}/{len} histories, {per_sec}, {eta} left",
    )?);
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= args.from + args.seeds {
            break;
        }
        let outcome = History::new(seed).play(false, None);
        let mut total = total.lock().expect("no thread panicked");
        total.add(&outcome.tally);
        if let Some(broken) = outcome.broken.first() {
            bar.suspend(|| println!("seed {seed}: {broken}"));
            total.failed.push(seed);
        }
        bar.inc(1);
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    let total = total.into_inner()?;
    print!("{total}");
    if let Some(seed) = total.failed.iter().min() {
        let shortest = History::new(*seed).shrink();
        print!(
            "seed {seed}, shrunk to {} steps:\n{}",
            shortest.steps.len(),
            shortest.play(true, None).trace
        );
        anyhow::bail!(
            "{} histories failed: {:?}",
            total.failed.len(),
            total.failed
        );
    }
    Ok(())
}

/// What many histories found.
#[derive(Default)]
struct Totals {
    histories: u64,
    calls: u64,
    commands: u64,
    faults: BTreeMap<&'static str, u64>,
    exceptions: BTreeMap<&'static str, u64>,
    worst: f64,
    failed: Vec<u64>,
}

impl Totals {
    fn add(&mut self, tally: &Tally) {
        self.histories += 1;
        self.calls += tally.calls;
        self.commands += tally.commands;
        self.worst = self.worst.max(tally.worst);
        for (sum, more) in [
            (&mut self.faults, &tally.faults),
            (&mut self.exceptions, &tally.exceptions),
        ] {
            for (name, count) in more {
                *sum.entry(name).or_default() += count;
            }
        }
    }
}

impl fmt::Display for Totals {
    /// Writes a table in Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| simulated | |\n|---|---:|")?;
        writeln!(f, "| histories | {} |", self.histories)?;
        writeln!(f, "| calls | {} |", self.calls)?;
        writeln!(
            f,
            "| commands that the server executed | {} |",
            self.commands
        )?;
        for (name, count) in &self.faults {
            writeln!(f, "| fault: {name} | {count} |")?;
        }
        for (name, count) in &self.exceptions {
            writeln!(f, "| exception: {name} | {count} |")?;
        }
        writeln!(
            f,
            "| the fullest window, of its maximum | {:.3} |",
            self.worst
        )
    }
}
