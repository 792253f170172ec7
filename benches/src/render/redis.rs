//! The sections of decisions in Redis.

use super::Sections;
use super::table::{Column, column, figure, goals, latency, number, origin, ratio, row, table};
use crate::declared::REDIS;
use crate::declared::redis::Scenario;
use crate::record::Record;

const LIMITER: &str = "limiter";
const GCRA: &str = "GCRA";
const CLIENTS: [&str; 3] = [LIMITER, GCRA, "no-op"];

pub(super) fn sections(records: &[Record]) -> Sections {
    let show = |head: &str, columns: &[Column<'_>], prefix: &str| {
        let scenarios = REDIS.scenarios.iter().filter(|scenario| scenario.name.starts_with(prefix));
        let rows = scenarios.map(|Scenario { name, about, .. }| match prefix {
            "server/" => row(name, about),
            _ => (about.clone(), name.clone()),
        });
        table(records, head, columns, rows)
    };
    let thousands = |figure: f64| number(figure / 1e3);
    let server = [
        figure(LIMITER, LIMITER, "script"),
        figure(GCRA, GCRA, "script"),
        figure("no-op", "no-op", "script"),
        ratio("limiter to GCRA", LIMITER, "script", GCRA),
        figure("entries per key", LIMITER, "entries"),
    ];
    let rates = CLIENTS.map(|who| column(who, move |record, name| record.get(name, who, "rate").map(thousands)));
    let per_unit = |record: &Record, name: &str| {
        Some(record.get(name, LIMITER, "bytes")? / name.split('/').nth(1)?.parse::<f64>().ok()?)
    };
    let bytes = [
        figure(LIMITER, LIMITER, "bytes"),
        column("per unit", move |record, name| per_unit(record, name).map(number)),
        figure(GCRA, GCRA, "bytes"),
    ];
    let denied = |record: &Record, name: &str| record.get(&name.replace("/allowed", "/denied"), LIMITER, "processor");
    // The scenarios of denied decisions lack the first figure, and have no rows.
    let sizing = [
        column("bytes per entry", move |record, name| {
            per_unit(record, name).filter(|_| name.ends_with("/allowed")).map(number)
        }),
        figure("script, µs", LIMITER, "script"),
        figure("allowed, µs of CPU", LIMITER, "processor"),
        column("denied, µs of CPU", move |record, name| denied(record, name).map(number)),
        column("decisions per second", move |record, name| {
            let slower = record.get(name, LIMITER, "processor")?.max(denied(record, name)?);
            Some(format!("{:.0},000", 1e3 / slower))
        }),
    ];
    Sections::from([
        ("redis-origin", origin(records)),
        ("server-time", show("scenario", &server, "server/")),
        ("throughput", show("tasks", &rates, "clients/")),
        ("latency", show("tasks", &CLIENTS.map(|who| latency(who, who)), "clients/")),
        ("sizing", origin(records) + "\n" + &show("entries of a log | compact up to", &sizing, "sizing/")),
        ("redis-bytes", show("units", &bytes, "bytes/")),
        ("redis-goals", goals(records, "server time relative to GCRA", &REDIS.goals)),
    ])
}
