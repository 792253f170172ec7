//! Plays one history to read, or many.

use clap::Parser;
use sim::History;

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
    /// Plays this many histories on all cores, with the seeds from --from on, until ten have failed.
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
    let seeds = args.from..args.from + args.seeds;
    let (tally, failed) = sim::play_many(seeds, history, None, 10);
    print!("{tally}");
    for (seed, rule) in &failed {
        println!("seed {seed}: {rule}");
    }
    anyhow::ensure!(failed.is_empty(), "{} histories failed", failed.len());
    Ok(())
}
