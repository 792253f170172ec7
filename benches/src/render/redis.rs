//! The sections of decisions in Redis.

use super::Sections;
use super::table::{Column, beside, column, figure, goals, latency, number, origin, ratio, row, table};
use crate::declared::REDIS;
use crate::record::Record;
use crate::remote::Scenario;

const LIMITER: &str = "limiter";
const GCRA: &str = "GCRA";
const ONE_BY_ONE: &str = "one by one";
const MANY: &str = "`acquire_many`";
const SORTED_SETS: [&str; 3] = [LIMITER, "sorted set, script", "sorted set, MULTI"];
const CLIENTS: [&str; 3] = [LIMITER, GCRA, "no-op"];

pub(crate) fn sections(records: &[Record]) -> Sections {
    let show = |head: &str, columns: &[Column<'_>], prefix: &str| {
        let scenarios = REDIS.scenarios.iter().filter(|scenario| scenario.name.starts_with(prefix));
        let rows = scenarios.map(|Scenario { name, about, .. }| match prefix {
            "server/" => row(name, about),
            _ => (about.clone(), name.clone()),
        });
        table(records, head, columns, rows)
    };
    let hundredths = |figure: f64| format!("{figure:.2}");
    let thousands = |figure: f64| format!("{:.1}", figure / 1000.0);
    let server = [
        figure(LIMITER, LIMITER, "script", 2),
        figure(GCRA, GCRA, "script", 2),
        figure("no-op", "no-op", "script", 2),
        ratio("limiter to GCRA", LIMITER, "script", GCRA),
        figure("entries per key", LIMITER, "entries", 0),
    ];
    let batches = [
        figure(ONE_BY_ONE, ONE_BY_ONE, "each", 0),
        figure(MANY, MANY, "each", 0),
        figure("ratio", MANY, "each to one by one", 2),
    ];
    let per_unit = |record: &Record, name: &str| {
        Some(record.get(name, LIMITER, "bytes")? / name.split('/').nth(1)?.parse::<f64>().ok()?)
    };
    let bytes = [figure(LIMITER, LIMITER, "bytes", 0), number("per unit", 1, per_unit), figure(GCRA, GCRA, "bytes", 0)];
    let denied = |record: &Record, name: &str| record.get(&name.replace("/allowed", "/denied"), LIMITER, "processor");
    // The scenarios of denied decisions lack the first figure, and have no rows.
    let sizing = [
        number("bytes per entry", 0, move |record, name| per_unit(record, name).filter(|_| name.ends_with("/allowed"))),
        figure("script, µs", LIMITER, "script", 1),
        figure("allowed, µs of processor", LIMITER, "processor", 1),
        number("denied, µs of processor", 1, denied),
        column("decisions per second", move |record, name| {
            let slower = record.get(name, LIMITER, "processor")?.max(denied(record, name)?);
            Some(format!("{:.0},000", 1e3 / slower))
        }),
    ];
    Sections::from([
        ("redis-origin", origin(records)),
        ("server-time", show("scenario", &server, "server/")),
        ("textbook-script", show("entries | decisions", &beside(&SORTED_SETS, "script", hundredths), "textbook/")),
        (
            "textbook-processor",
            show("entries | decisions", &beside(&SORTED_SETS, "processor", hundredths), "textbook/"),
        ),
        ("throughput", show("tasks", &beside(&CLIENTS, "rate", thousands), "clients/")),
        ("latency", show("tasks", &CLIENTS.map(|who| latency(who, who)), "clients/")),
        ("batches", show("acquires", &batches, "batch/")),
        ("sizing", origin(records) + "\n" + &show("entries of a log | compact up to", &sizing, "sizing/")),
        ("redis-bytes", show("units", &bytes, "bytes/")),
        ("redis-goals", goals(records, "server time relative to GCRA", &REDIS.goals)),
    ])
}
