//! The numbers of `docs/production.md`.

use exact_limiter::wrappers::Guarded;
use exact_limiter::{MemoryStore, RedisStore};

const PAGE: &str = include_str!("../../docs/production.md");

#[test]
fn the_recommended_stack_has_the_documented_numbers() {
    let redis = RedisStore::builder();
    let stack = Guarded::builder(MemoryStore::new());
    let layer = include_str!("../../limiter-tower/src/rules.rs");
    let defaults = format!("{redis:?} {stack:?} {layer}");
    for (stated, default) in [
        ("250 ms, twice", "response: 250ms }, retries: 1"),
        ("Builder::timeout` | 300 ms", ", timeout: 300ms"),
        ("five failures in a row", "failure_threshold: 5"),
        ("700 ms", "timeout: Duration::from_millis(700)"),
    ] {
        let is_true = PAGE.contains(stated) && defaults.contains(default);
        assert!(is_true, "{stated}: {redis:?} {stack:?}");
    }
}

/// A million keys with a hundred entries each, of which each decides a hundred times a minute.
#[test]
fn the_sizes_follow_from_the_measured_ones() {
    let figure = |table: &str, row: &str, column: usize| -> f64 {
        let row = table.lines().find(|line| line.starts_with(row)).unwrap();
        let cell = row.split('|').nth(column).unwrap();
        cell.replace([',', ' '], "").parse().unwrap()
    };
    let results = include_str!("../../benches/RESULTS.md");
    let (_, bytes) = results.split_once("redis-bytes: rendered").unwrap();
    let kilobytes = figure(bytes, "| 100 |", 3) / 1e3;
    let memory = format!("| {kilobytes:.1} KB | {kilobytes:.1} GB |");
    assert!(PAGE.contains(&memory), "{memory}");

    let decisions = figure(PAGE, "| decisions per second |", 3);
    assert_eq!(decisions, (1e6 * 100.0_f64 / 60.0 / 1e5).round() * 1e5);
    let sizing = include_str!("../../docs/operations.md");
    let one = figure(sizing, "| 100 | 128 | AMD |", 8);
    let masters = format!("| {:.0} |", decisions / (one / 2.0));
    assert!(PAGE.contains(&masters), "{masters}");
}
