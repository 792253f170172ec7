//! Histories keep the promises, the same seed makes the same trace, and mistakes are found.

mod mistakes;

use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use sim::{History, Mistake, Tally};

/// Plays histories until one breaks a rule. Returns its seed and the rule, or what all have done.
fn play(
    seeds: Range<u64>,
    change: fn(History) -> History,
    mistake: Option<Mistake>,
) -> Result<Tally, (u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(tally);
            }
            let outcome = change(History::new(seed)).play(false, mistake);
            if let Some(rule) = outcome.broken.into_iter().next() {
                next.store(seeds.end, Ordering::Relaxed);
                return Err((seed, rule));
            }
            tally.add(&outcome.tally);
        }
    };
    std::thread::scope(|scope| {
        let mut all = Tally::default();
        for worker in [scope.spawn(work), scope.spawn(work)] {
            all.add(&worker.join().unwrap()?);
        }
        Ok(all)
    })
}

#[test]
fn histories_keep_the_promises() {
    const SHOW: &str = "cargo run -p sim -- --seed N --shrink shows it";
    let tally = play(0..300, std::convert::identity, None)
        .expect(SHOW)
        .to_string();
    if std::env::var_os("LIMITER_TEST_ALL").is_some() {
        play(300..1_000, std::convert::identity, None).expect(SHOW);
    }
    let documented = include_str!("../../../docs/faults.md");
    assert!(
        documented.contains(&tally),
        "docs/faults.md differs: cargo run -p sim\n{tally}"
    );
}

/// limiter-log serves the same calls over a table.
#[test]
fn tables_keep_the_promises() {
    const SHOW: &str = "cargo run -p sim -- --table --seed N --shrink shows it";
    let last = match std::env::var_os("LIMITER_TEST_ALL") {
        Some(_) => 1_000,
        None => 200,
    };
    play(0..last, History::over_a_table, None).expect(SHOW);
}

/// In two processes, because the operating system seeds each.
#[test]
fn the_same_seed_makes_the_same_trace() {
    let trace = |seed: u64| {
        let seed = seed.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
        let output = command.args(["--seed", &seed]).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    for seed in 0..100 {
        let one = trace(seed);
        assert!(one.len() > 1_000 && one == trace(seed), "seed {seed}");
    }
}
