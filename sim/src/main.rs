//! Plays one history to read, or many.

use lexopt::prelude::*;
use sim::{History, Server};

const HELP: &str = "\
Plays the whole stack over a simulated Redis, from a seed.

      --seed SEED    Plays the history of this seed, and prints it
      --shrink       Leaves out what that history does not need to fail
      --table        Over limiter-log and a table, instead of Redis
      --memory       Over a server's memory store, instead of Redis
      --seeds COUNT  Plays this many histories on all cores, until ten have failed [default: 300]
      --from SEED    The first seed of many [default: 0]
";

struct Args {
    seed: Option<u64>,
    shrink: bool,
    server: Server,
    seeds: u64,
    from: u64,
}

impl Args {
    /// Returns the arguments of the process. `None` if it should print the help.
    fn parse() -> Result<Option<Self>, lexopt::Error> {
        let mut args = Self {
            seed: None,
            shrink: false,
            server: Server::Redis,
            seeds: 300,
            from: 0,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Long("seed") => args.seed = Some(parser.value()?.parse()?),
                Long("shrink") => args.shrink = true,
                Long("table") => args.server = Server::Table,
                Long("memory") => args.server = Server::Memory,
                Long("seeds") => args.seeds = parser.value()?.parse()?,
                Long("from") => args.from = parser.value()?.parse()?,
                Short('h') | Long("help") => return Ok(None),
                _ => return Err(arg.unexpected()),
            }
        }
        if args.shrink && args.seed.is_none() {
            return Err("--shrink needs --seed".into());
        }
        Ok(Some(args))
    }
}

fn main() -> anyhow::Result<()> {
    let Some(args) = Args::parse()? else {
        print!("{HELP}");
        return Ok(());
    };
    let history = |seed| History::new(seed).over(args.server);
    if let Some(seed) = args.seed {
        let mut history = history(seed);
        if args.shrink {
            history = history.shrink();
        }
        let outcome = history.play(true, None);
        print!("{}", outcome.trace);
        println!("{} steps", history.steps());
        anyhow::ensure!(
            outcome.broken.is_empty(),
            "seed {seed}: {}",
            outcome.broken.join("\n")
        );
        return Ok(());
    }
    let seeds = args.from..args.from + args.seeds;
    let failed = sim::play_many(seeds, history, None, 10);
    for (seed, rule) in &failed {
        println!("seed {seed}: {rule}");
    }
    anyhow::ensure!(failed.is_empty(), "{} histories failed", failed.len());
    println!("{} histories, none failed", args.seeds);
    Ok(())
}
