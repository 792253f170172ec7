//! The sections of decisions in Redis.

use super::table::{Column, LIMITER, column, figure, goals, number, origin, ratio, row, table};
use super::{PACKAGE, Sections};
use crate::lease::{SATURATED, WHO, WORKLOADS};
use crate::record::Record;
use crate::redis::scenario::{REDIS, Scenario};

const GCRA: &str = "GCRA";
/// Returns the label and the name of a scenario.
type Row = fn(&str, &str) -> (String, String);

pub(crate) fn sections(records: &[Record]) -> Sections {
    let show = |head: &str, columns: &[Column<'_>], row: Row, prefixes: &[&str]| {
        let wanted = |scenario: &&Scenario| {
            prefixes
                .iter()
                .any(|prefix| scenario.name.starts_with(prefix))
        };
        let scenarios = REDIS.scenarios.iter().filter(wanted);
        table(
            records,
            head,
            columns,
            scenarios.map(|scenario| row(&scenario.name, &scenario.about)),
        )
    };
    let cells = |name: &str, about: &str| (about.to_owned(), name.to_owned());
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
        column("per unit", move |record, name: &String| {
            per_unit(record, name).map(number)
        }),
        figure(GCRA, GCRA, "bytes"),
    ];
    let denied = |record: &Record, name: &str| {
        record.get(&name.replace("/allowed", "/denied"), LIMITER, "processor")
    };
    // The scenarios of denied decisions lack the first figure, and have no rows.
    let sizing = [
        column("bytes per entry", move |record, name: &String| {
            per_unit(record, name)
                .filter(|_| name.ends_with("/allowed"))
                .map(number)
        }),
        figure("script, µs", LIMITER, "script"),
        figure("allowed, µs of CPU", LIMITER, "processor"),
        column("denied, µs of CPU", move |record, name: &String| {
            denied(record, name).map(number)
        }),
        column("decisions per second", move |record, name: &String| {
            let slower = record
                .get(name, LIMITER, "processor")?
                .max(denied(record, name)?);
            Some(format!("{:.0},000", 1e3 / slower))
        }),
    ];
    let logs = [figure("µs of the server", LIMITER, "script")];
    Sections::from([
        ("redis-origin", origin(PACKAGE, "redis", records)),
        ("server-time", show("scenario", &server, row, &["server/"])),
        (
            "sizing",
            show(
                "entries of a log | compact up to",
                &sizing,
                cells,
                &["sizing/"],
            ),
        ),
        ("redis-bytes", show("units", &bytes, cells, &["bytes/"])),
        (
            "redis-logs",
            show(
                "one log",
                &logs,
                row,
                &["renewal/", "settlement/", "worst/"],
            ),
        ),
        (
            "redis-goals",
            goals(records, "server time relative to GCRA", &REDIS.goals),
        ),
    ])
}

pub(crate) fn leases(records: &[Record]) -> Sections {
    let [with, without] = WHO;
    let thousandth = |title, who, measure| {
        column(title, move |record, name: &String| {
            Some(number(record.get(name, who, measure)? * 1e3))
        })
    };
    let columns = [
        figure("decisions per second", with, "per second"),
        figure("without", without, "per second"),
        figure("median, µs", with, "half"),
        figure("without", without, "half"),
        thousandth("calls per 1,000 decisions", with, "calls"),
        thousandth("ns of Redis' CPU", with, "processor"),
        thousandth("without", without, "processor"),
    ];
    let shares = [
        figure("with a lease of window / 64, %", with, "share"),
        figure("without, %", without, "share"),
    ];
    let rows = WORKLOADS
        .iter()
        .map(|workload| (workload.about.to_owned(), workload.name.to_owned()));
    let saturated = [(
        "a key asked for twice its limit".to_owned(),
        SATURATED.to_owned(),
    )];
    Sections::from([
        ("lease-origin", origin(PACKAGE, "lease", records)),
        (
            "leases",
            table(records, "limits with a lease", &columns, rows),
        ),
        (
            "lease-shares",
            table(records, "admitted", &shares, saturated),
        ),
    ])
}
