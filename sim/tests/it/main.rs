//! Histories keep the promises, the same seed makes the same trace, and mistakes are found.

mod mistakes;

use std::process::Command;

use sim::{History, play_many};

#[test]
fn histories_keep_the_promises() {
    let (tally, failed) = play_many(0..300, History::new, None, 1);
    assert!(failed.is_empty(), "--seed N --shrink shows it: {failed:?}");
    let last = match std::env::var_os("LIMITER_TEST_ALL") {
        Some(_) => 2_000,
        None => 300,
    };
    let (_, failed) = play_many(300..last, History::new, None, 1);
    assert!(failed.is_empty(), "--seed N --shrink shows it: {failed:?}");
    let (documented, tally) = (include_str!("../../../docs/faults.md"), tally.to_string());
    assert!(
        documented.contains(&tally),
        "docs/faults.md differs: cargo run -p sim\n{tally}"
    );
}

/// limiter-log serves the same calls over a table.
#[test]
fn tables_keep_the_promises() {
    let last = match std::env::var_os("LIMITER_TEST_ALL") {
        Some(_) => 1_000,
        None => 200,
    };
    let over_a_table = |seed| History::new(seed).over_a_table();
    let (_, failed) = play_many(0..last, over_a_table, None, 1);
    assert!(
        failed.is_empty(),
        "--table --seed N --shrink shows it: {failed:?}"
    );
}

/// In two processes, because the operating system seeds each.
#[test]
fn the_same_seed_makes_the_same_trace() {
    let trace = |seed: u64| {
        let (is_over_a_table, seed) = (seed % 4 == 3, seed.to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
        command.args(is_over_a_table.then_some("--table"));
        let output = command.args(["--seed", &seed]).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    for seed in 0..100 {
        let one = trace(seed);
        assert!(one.len() > 1_000 && one == trace(seed), "seed {seed}");
    }
}
