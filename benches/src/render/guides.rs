//! The figures that guides show: the size of full logs, and of a server.

use super::table::{Column, LIMITER, column, figure, rate, table};
use crate::memory::bytes::FULL;
use crate::record::Record;
use crate::redis::scenario::REDIS;

/// Returns the bytes of full logs in both stores.
pub(super) fn costs(families: &[Record]) -> String {
    let kilobytes = |title, group| {
        column(title, move |record, limit| {
            Some(record.get(&format!("{group}/full/{limit}"), LIMITER, "bytes")? / 1e3)
        })
    };
    let columns = [
        column("entries", |record, limit| {
            record.get(&format!("memory/full/{limit}"), LIMITER, "entries")
        }),
        kilobytes("KB in process", "memory"),
        kilobytes("KB in Redis", "redis"),
    ];
    let rows = FULL.map(|limit| (format!("`{limit}`"), limit));
    table(families, "limit", &columns, rows)
}

/// Returns the CPU and the memory of a server by the entries of its logs.
pub(super) fn sizing(families: &[Record]) -> String {
    let denied = |record: &Record, scenario: &str| {
        let scenario = scenario.replace("/allowed", "/denied");
        record.get(&scenario, LIMITER, "processor")
    };
    let decisions = move |record: &Record, scenario: &str| {
        let allowed = record.get(scenario, LIMITER, "processor")?;
        Some(rate(1e6 / allowed.max(denied(record, scenario)?)))
    };
    let columns: [Column<'_>; 5] = [
        column("bytes per entry", |record, scenario| {
            let entries = scenario.split('/').nth(2)?.parse::<f64>().ok()?;
            Some(record.get(scenario, LIMITER, "bytes")? / entries)
        }),
        figure("script, µs", LIMITER, "script"),
        figure("allowed, µs of CPU", LIMITER, "processor"),
        column("denied, µs of CPU", denied),
        ("decisions per second", Box::new(decisions)),
    ];
    let scenarios = REDIS.scenarios.iter();
    let rows = scenarios
        .filter(|each| each.name.starts_with("sizing/") && !each.denied)
        .map(|each| (&each.about, format!("redis/{}", each.name)));
    table(families, "entries of a log | compact up to", &columns, rows)
}
