//! Plays one history to read, or many.

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
    /// Over limiter-log and a table, instead of Redis.
    #[arg(long)]
    table: bool,
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
    let history = |seed| match args.table {
        true => History::new(seed).over_a_table(),
        false => History::new(seed),
    };
    if let Some(seed) = args.seed {
        let mut history = history(seed);
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
    let total = Mutex::new((Tally::default(), Vec::new()));
    let bar = ProgressBar::new(args.seeds);
    bar.set_style(ProgressStyle::with_template(
        "{wide_bar} {pos}/{len} histories, {per_sec}, {eta} left",
    )?);
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= args.from + args.seeds {
            break;
        }
        let outcome = history(seed).play(false, None);
        let mut total = total.lock().expect("no thread panicked");
        total.0.add(&outcome.tally);
        if let Some(broken) = outcome.broken.first() {
            bar.suspend(|| println!("seed {seed}: {broken}"));
            total.1.push(seed);
        }
        bar.inc(1);
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    let (tally, failed) = total.into_inner()?;
    print!("{tally}");
    anyhow::ensure!(
        failed.is_empty(),
        "{} histories failed: {failed:?}",
        failed.len()
    );
    Ok(())
}
