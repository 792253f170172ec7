//! Histories keep the promises, the same seed makes the same trace, and mistakes are found.

mod mistakes;

use std::process::Command;

use sim::{History, Server, play_many};

#[test]
fn histories_keep_the_promises() {
    let last = match std::env::var_os("LIMITER_TEST_ALL") {
        Some(_) => 2_000,
        None => 300,
    };
    let failed = play_many(0..last, History::new, None, 1);
    assert!(failed.is_empty(), "--seed N --shrink shows it: {failed:?}");
}

/// limiter-log serves the same calls over a table, and limiter-server from its memory.
#[test]
fn other_servers_keep_the_promises() {
    let last = match std::env::var_os("LIMITER_TEST_ALL") {
        Some(_) => 1_000,
        None => 200,
    };
    for server in [Server::Table, Server::Memory] {
        let failed = play_many(0..last, |seed| History::new(seed).over(server), None, 1);
        assert!(
            failed.is_empty(),
            "{server:?}, --seed N --shrink: {failed:?}"
        );
    }
}

/// In two processes, because the operating system seeds each.
#[test]
fn the_same_seed_makes_the_same_trace() {
    let trace = |seed: u64| {
        let server = [None, None, Some("--memory"), Some("--table")][seed as usize % 4];
        let mut command = Command::new(env!("CARGO_BIN_EXE_sim"));
        command.args(server);
        let output = command
            .args(["--seed", &seed.to_string()])
            .output()
            .unwrap();
        assert!(output.status.success());
        output.stdout
    };
    for seed in 0..100 {
        let one = trace(seed);
        assert!(one.len() > 1_000 && one == trace(seed), "seed {seed}");
    }
}
