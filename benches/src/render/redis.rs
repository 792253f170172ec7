//! The sections of decisions in Redis.

use super::Sections;
use super::table::{Column, Goal, beside, column, goals, number, origin, table};
use crate::record::Record;
use crate::remote::COLLISIONS;
use crate::remote::scenarios::{
    BATCHES, CLIENTS, SIZING, SORTED_SETS, TASKS, TEXTBOOK, UNITS, Who, grouped, server, verdict,
};
use crate::turns::Effort;

const LIMITER: &str = Who::Limiter.name();
const GCRA: &str = Who::Gcra.name();
const GROUPED: &str = Who::Grouped.name();

pub(super) fn sections(records: &[Record]) -> Sections {
    let sorted_sets: Vec<&str> = SORTED_SETS.iter().map(|who| who.name()).collect();
    let clients: Vec<&str> = CLIENTS.iter().map(|who| who.name()).collect();
    let textbook = |measure| {
        let row = |entries| [true, false].map(|allowed| (entries, verdict(allowed)));
        let rows = TEXTBOOK.into_iter().flat_map(row);
        let rows =
            rows.map(|(entries, verdict)| (format!("{entries} | {verdict}"), format!("textbook/{entries}/{verdict}")));
        table(records, "entries | decisions", &beside(&sorted_sets, measure, |micros| format!("{micros:.2}")), rows)
    };
    let numbered = |prefix: &'static str| move |n: usize| (n.to_string(), format!("{prefix}/{n}"));
    let admitted: Vec<_> = sorted_sets.iter().map(|who| of(who, who, "admitted", 0)).collect();
    let latency: Vec<_> = clients.iter().map(|who| column(who, |record, name| latency(record, name, who))).collect();
    let batches = [
        of(Who::OneByOne.name(), Who::OneByOne.name(), "each", 0),
        of(Who::Together.name(), Who::Together.name(), "each", 0),
        of("ratio", Who::Together.name(), "each ratio", 2),
    ];
    let bytes = [
        of(LIMITER, LIMITER, "bytes", 0),
        number("per unit", 1, |record, name| {
            let units: f64 = name.rsplit('/').next()?.parse().ok()?;
            Some(record.get(name, LIMITER, "bytes")? / units)
        }),
        of(GCRA, GCRA, "bytes", 0),
    ];
    let thousands = |rate: f64| format!("{:.1}", rate / 1000.0);
    Sections::from([
        ("redis-origin", origin(records)),
        ("server-time", server_time(records)),
        ("textbook-script", textbook("script")),
        ("textbook-processor", textbook("processor")),
        ("collisions", table(records, "limit", &admitted, [("100".to_owned(), COLLISIONS.to_owned())])),
        ("throughput", table(records, "tasks", &beside(&clients, "rate", thousands), TASKS.map(numbered("clients")))),
        ("latency", table(records, "tasks", &latency, TASKS.map(numbered("clients")))),
        ("group-commit", group_commit(records)),
        ("batches", table(records, "acquires", &batches, BATCHES.map(numbered("batch")))),
        ("sizing", origin(records) + "\n" + &sizing(records)),
        ("redis-bytes", table(records, "units", &bytes, UNITS.map(|n| numbered("bytes")(n as usize)))),
        ("redis-goals", goals(records, "server time relative to GCRA", redis_goals())),
    ])
}

/// Returns the column of one contestant's figures.
fn of<'a>(title: &str, who: &'a str, measure: &'a str, decimals: usize) -> Column<'a> {
    number(title, decimals, move |record, name| record.get(name, who, measure))
}

/// Returns the ratio of the limiter's time to that of GCRA, or a quartile of it.
fn to_gcra(record: &Record, name: &str, ratio: &str) -> Option<f64> {
    Some(1.0 / record.get(name, GCRA, ratio)?)
}

fn server_time(records: &[Record]) -> String {
    let scenarios = server(&Effort::QUICK).into_iter();
    let rows = scenarios.map(|scenario| (format!("`{}`: {}", scenario.name, scenario.about), scenario.name));
    let ratio = |record: &Record, name: &str| {
        let ratio = |ratio| to_gcra(record, name, ratio);
        let (low, high) = (ratio("script ratio, high")?, ratio("script ratio, low")?);
        Some(format!("{:.2} ({low:.2} to {high:.2})", ratio("script ratio")?))
    };
    let columns = [
        of(LIMITER, LIMITER, "script", 2),
        of(GCRA, GCRA, "script", 2),
        of(Who::Noop.name(), Who::Noop.name(), "script", 2),
        column("limiter to GCRA", ratio),
        of("entries per key", LIMITER, "entries", 0),
    ];
    table(records, "scenario", &columns, rows)
}

/// Returns the median and the 99th percentile.
fn latency(record: &Record, name: &str, who: &str) -> Option<String> {
    Some(format!("{:.0}, {:.0}", record.get(name, who, "half")?, record.get(name, who, "p99")?))
}

fn group_commit(records: &[Record]) -> String {
    let rows = grouped().into_iter().map(|(tasks, scenario)| (format!("{} | {tasks}", scenario.about), scenario.name));
    let rate = |title, who| number(title, 1, move |record, name| Some(record.get(name, who, "rate")? / 1000.0));
    let columns = [
        of("processor", LIMITER, "processor", 2),
        of("with group commit", GROUPED, "processor", 2),
        of("ratio", GROUPED, "processor ratio", 2),
        rate("per second", LIMITER),
        rate("with", GROUPED),
        column("latency", |record, name| latency(record, name, LIMITER)),
        column("latency with", |record, name| latency(record, name, GROUPED)),
    ];
    table(records, "decisions | tasks", &columns, rows)
}

fn sizing(records: &[Record]) -> String {
    let figure = |record: &Record, name: &str, allowed, measure| {
        record.get(&format!("{name}/{}", verdict(allowed)), LIMITER, measure)
    };
    let time =
        move |title, allowed, measure| number(title, 1, move |record, name| figure(record, name, allowed, measure));
    let columns = [
        number("bytes per entry", 0, |record, name| {
            let entries: f64 = name.split('/').nth(1)?.parse().ok()?;
            Some(figure(record, name, true, "bytes")? / entries)
        }),
        time("script, µs", true, "script"),
        time("allowed, µs of processor", true, "processor"),
        time("denied, µs of processor", false, "processor"),
        column("decisions per second", |record, name| {
            let time = |allowed| figure(record, name, allowed, "processor");
            Some(format!("{:.0},000", 1e3 / time(true)?.max(time(false)?)))
        }),
    ];
    let rows =
        SIZING.map(|(entries, compact)| (format!("{entries} | {compact}"), format!("sizing/{entries}/{compact}")));
    table(records, "entries of a log | compact up to", &columns, rows)
}

fn redis_goals() -> Vec<Goal> {
    let to_gcra = server(&Effort::QUICK).into_iter().filter_map(|scenario| -> Option<Goal> {
        let name = scenario.name;
        Some((scenario.about, scenario.goal?, Box::new(move |record| to_gcra(record, &name, "script ratio"))))
    });
    let group_commit = grouped().into_iter().filter_map(|(tasks, scenario)| -> Option<Goal> {
        let what = format!("group commit, {tasks} tasks: {} (processor time relative to none)", scenario.about);
        let name = scenario.name;
        Some((what, scenario.goal?, Box::new(move |record| record.get(&name, GROUPED, "processor ratio"))))
    });
    to_gcra.chain(group_commit).collect()
}
