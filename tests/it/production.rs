//! The numbers of `docs/production.md`.

use exact_limiter::wrappers::Guarded;
use exact_limiter::{MemoryStore, RedisStore};

#[test]
fn the_recommended_stack_has_the_documented_numbers() {
    let page = include_str!("../../docs/production.md");
    let layer = include_str!("../../limiter-tower/src/rules.rs");
    let stack = Guarded::builder(MemoryStore::new());
    for (stated, defaults, default) in [
        (
            "response_timeout` | 250 ms, twice",
            format!("{:?}", RedisStore::builder()),
            "response: 250ms }, retries: 1",
        ),
        (
            "GuardedBuilder::timeout` | 300 ms",
            format!("{stack:?}"),
            " timeout: 300ms",
        ),
        (
            "five failures in a row",
            format!("{stack:?}"),
            "failure_threshold: 5",
        ),
        (
            "LayerBuilder::timeout` | 700 ms",
            layer.to_owned(),
            "timeout: Duration::from_millis(700)",
        ),
    ] {
        assert!(page.contains(stated), "{stated}");
        assert!(defaults.contains(default), "{stated}: {defaults}");
    }
}

/// A million keys with a hundred entries each, of which each decides a hundred times a minute.
#[test]
fn the_sizes_follow_from_the_measured_ones() {
    let page = include_str!("../../docs/production.md");
    let figure = |table: &str, row: &str, column: usize| -> f64 {
        let row = table.lines().find(|line| line.starts_with(row)).unwrap();
        let cell = row.split('|').nth(column).unwrap();
        cell.replace([',', ' '], "").parse().unwrap()
    };
    let results = include_str!("../../benches/RESULTS.md");
    let (_, bytes) = results.split_once("redis-bytes: rendered").unwrap();
    let kilobytes = figure(bytes, "| 100 |", 3) / 1e3;
    let memory = format!("| {kilobytes:.1} KB | {kilobytes:.1} GB |");
    assert!(page.contains(&memory), "{memory}");

    let decisions = figure(page, "| decisions per second |", 3);
    assert_eq!(decisions, (1e6 * 100.0_f64 / 60.0 / 1e5).round() * 1e5);
    let one = figure(
        include_str!("../../docs/operations.md"),
        "| 100 | 128 | AMD |",
        8,
    );
    let masters = format!("| {:.0} |", decisions / (one / 2.0));
    assert!(page.contains(&masters), "{masters}");
}
