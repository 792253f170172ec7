//! The sections of decisions in Redis.

use super::Sections;
use super::table::{Column, column, figure, goals, number, origin, ratio, row, table};
use crate::declared::REDIS;
use crate::declared::redis::{Measure, Scenario};
use crate::record::{Group, Record};

const LIMITER: &str = "limiter";
const GCRA: &str = "GCRA";

pub(super) fn sections(records: &[Record]) -> Sections {
    let show = |head: &str, columns: &[Column<'_>], prefix: &str| {
        let scenarios = REDIS.scenarios.iter().filter(|scenario| scenario.name.starts_with(prefix));
        let rows = scenarios.map(|Scenario { name, about, .. }| match prefix {
            "server/" => row(name, about),
            _ => (about.clone(), name.clone()),
        });
        table(records, head, columns, rows)
    };
    let server = [
        figure(LIMITER, LIMITER, "script"),
        figure(GCRA, GCRA, "script"),
        ratio("limiter to GCRA", LIMITER, "script", GCRA),
        figure("entries per key", LIMITER, "entries"),
    ];
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
    let special = |scenario: &&Scenario| !matches!(scenario.measure, Measure::Decision | Measure::Bytes);
    let special = REDIS.scenarios.iter().filter(special).map(|Scenario { name, about, .. }| row(name, about));
    let mut logs = table(records, "one log", &[figure("µs of the server", LIMITER, "script")], special);
    if logs.lines().count() == 2 {
        "No recorded run has these figures yet.\n".clone_into(&mut logs);
    }
    Sections::from([
        ("redis-origin", origin(Group::Redis, records)),
        ("server-time", show("scenario", &server, "server/")),
        (
            "sizing",
            origin(Group::Redis, records) + "\n" + &show("entries of a log | compact up to", &sizing, "sizing/"),
        ),
        ("redis-bytes", show("units", &bytes, "bytes/")),
        ("redis-logs", logs),
        ("redis-goals", goals(records, "server time relative to GCRA", &REDIS.goals)),
    ])
}
