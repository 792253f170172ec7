//! The sections of decisions in memory.

use super::table::{
    LIMITER, beside, column, figure, figure_of_each, goals, number, origin, row, table,
};
use super::{PACKAGE, Sections};
use crate::memory::MEMORY;
use crate::memory::bytes::FULL;
use crate::memory::flood::{FLOOD, FLOODED};
use crate::memory::libraries::{FORMS, PEERS};
use crate::memory::surface::{Cell, LIBRARIES};
use crate::record::Record;

pub(crate) fn sections(records: &[Record]) -> Sections {
    let scenarios = MEMORY
        .scenarios
        .iter()
        .map(|scenario| row(&scenario.name, &scenario.about));
    let peers = PEERS.map(|peer| peer.name);
    let all = [&peers[..], &FORMS.map(|form| form.name)].concat();
    let each = |who: &[&str]| {
        who.iter()
            .map(|who| ((*who).to_owned(), (*who).to_owned()))
            .collect::<Vec<_>>()
    };
    let admissions = [figure_of_each("admitted", "admitted", "boundary", 1.0)];
    let bytes = [
        ("1 entry", "1"),
        ("10 entries", "10"),
        ("100 entries", "100"),
        ("each further entry", "further"),
    ]
    .map(|(title, measure)| figure_of_each(title, "bytes", measure, 1.0));
    let floods = [
        figure_of_each("mean, ns", FLOOD, "mean", 1.0),
        figure_of_each("p99.9, µs", FLOOD, "p99.9", 1e3),
        figure_of_each("p99.99, µs", FLOOD, "p99.99", 1e3),
        figure_of_each("longest, ms", FLOOD, "longest", 1e6),
        figure_of_each("MB at the end", FLOOD, "bytes", 1e6),
    ];
    Sections::from([
        ("memory-origin", origin(PACKAGE, "memory", records)),
        (
            "times",
            table(records, "scenario", &beside(&all), scenarios),
        ),
        (
            "admissions",
            table(records, "library", &admissions, each(&peers)),
        ),
        ("bytes", table(records, "library", &bytes, each(&peers))),
        (
            "floods",
            table(records, "contestant", &floods, each(&FLOODED)),
        ),
        ("memory-goals", goals(records, "ratio", &MEMORY.goals)),
    ])
}

pub(crate) fn surface(records: &[Record]) -> Sections {
    let mut columns = beside(&LIBRARIES.map(|library| library.name));
    columns.push(figure("held", LIMITER, "held"));
    let row = |cell: Cell| {
        let Cell {
            keys,
            entries,
            allowed,
            threads,
        } = cell;
        let verdict = if allowed { "allowed" } else { "exhausted" };
        (
            format!("{keys} | {entries} | {verdict} | {threads}"),
            cell.to_string(),
        )
    };
    Sections::from([
        ("surface-origin", origin(PACKAGE, "surface", records)),
        (
            "surface",
            table(
                records,
                "keys | entries | verdict | threads",
                &columns,
                Cell::all().map(row),
            ),
        ),
    ])
}

/// Returns the bytes of full logs in both stores.
pub(super) fn costs(memory: &[Record], redis: &[Record]) -> String {
    let kilobytes =
        |record: &Record, name: &str| Some(number(record.get(name, LIMITER, "bytes")? / 1e3));
    let columns = [
        figure("entries", LIMITER, "entries"),
        column("KB in process", |record, name: &String| {
            kilobytes(record, name)
        }),
        column("KB in Redis", |record, name: &String| {
            kilobytes(record.same_family(redis)?, name)
        }),
    ];
    table(
        memory,
        "limit",
        &columns,
        FULL.map(|limit| (format!("`{limit}`"), format!("full/{limit}"))),
    )
}
