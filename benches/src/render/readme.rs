//! The README's tables and its picture.

use std::fmt::Write;

use super::table::{LIMITER, emphasized, number, rate};
use crate::record::Record;

/// The README's comparisons: a label, the scenario, the measure and the peer.
const ROWS: [(&str, &str, &str, &str); 5] = [
    (
        "memory: one busy key, ns",
        "memory/hot/allowed",
        "ns",
        "governor",
    ),
    (
        "memory: 100,000 keys, 64 requests each, ns",
        "surface/100000 64 allowed 1",
        "ns",
        "governor",
    ),
    (
        "memory: a key with 100 requests, bytes",
        "memory/bytes",
        "100",
        "governor",
    ),
    (
        "Redis: 100,000 keys, 10 requests each, µs",
        "redis/server/keys/allowed/steady",
        "script",
        "GCRA",
    ),
    (
        "Redis: a key with 100 requests, bytes",
        "redis/bytes/100",
        "bytes",
        "GCRA",
    ),
];

/// Returns the README's table, with a column for each CPU family: this library's figure, and in brackets its ratio to the peer's.
pub(super) fn speed(families: &[Record]) -> String {
    let names: Vec<&str> = families.iter().map(Record::family).collect();
    let mut out = format!("| cost | peer | {} |\n", names.join(" | "));
    let _ = writeln!(out, "|---|---|{}", "---:|".repeat(names.len()));
    for (label, scenario, measure, peer) in ROWS {
        let cell = |record: &Record| {
            let figure = record.get(scenario, LIMITER, measure)?;
            // The median of the ratios in each round, as in RESULTS.md, if the group has it.
            let ratio = match record.get(scenario, LIMITER, &format!("{measure} to {peer}")) {
                Some(ratio) => ratio,
                None => figure / record.get(scenario, peer, measure)?,
            };
            Some(format!("{} ({})", number(figure), emphasized(ratio)))
        };
        let cells: Vec<_> = families
            .iter()
            .map(|record| cell(record).unwrap_or_default())
            .collect();
        let _ = writeln!(out, "| {label} | {peer} | {} |", cells.join(" | "));
    }
    out
}

/// A store's name and purpose, its decisions per second, and its bytes in a log of 100 entries or per entry.
type Store<'a> = (
    &'a str,
    &'a str,
    &'a dyn Fn(&Record) -> Option<f64>,
    &'a dyn Fn(&Record) -> Option<f64>,
);

/// Returns the README's table of stores: the least rate of all CPU families, and the most bytes.
pub(super) fn stores(families: &[Record]) -> String {
    let rows: [Store<'_>; 3] = [
        (
            "memory",
            "one process",
            &|record| Some(1e9 / record.get("memory/keys_1M/uniform", LIMITER, "ns")?),
            &|record| Some(record.get("memory/bytes", LIMITER, "100")? / 100.0),
        ),
        (
            "[Redis](limiter-redis/README.md)",
            "a fleet",
            &|record| Some(1e6 / record.get("redis/sizing/100/128/allowed", LIMITER, "processor")?),
            &|record| Some(record.get("redis/bytes/100", LIMITER, "bytes")? / 100.0),
        ),
        (
            "[Postgres](limiter-postgres/README.md)",
            "a fleet without Redis",
            &|record| record.get("postgres/10000/8", LIMITER, "per second"),
            &|record| record.get("postgres/bytes", LIMITER, "100"),
        ),
    ];
    let mut out = "| store | for | decisions per second | bytes per entry |\n|---|---|---:|---:|\n"
        .to_owned();
    for (store, purpose, decisions, bytes) in rows {
        let least = families
            .iter()
            .filter_map(decisions)
            .fold(f64::INFINITY, f64::min);
        let most = families.iter().filter_map(bytes).fold(0.0, f64::max);
        let _ = writeln!(
            out,
            "| {store} | {purpose} | {} | {} |",
            rate(least),
            number(most)
        );
    }
    out
}

/// The libraries of the picture, and what they are.
const BARS: [(&str, &str); 3] = [
    ("limitador", "limitador: fixed window"),
    ("governor", "governor: GCRA"),
    (LIMITER, "exact-limiter: sliding window log"),
];

/// Returns how much a library admitted in its worst window.
fn admitted(families: &[Record], who: &str) -> f64 {
    let each = families.iter();
    let each = each.filter_map(|record| record.get("memory/admitted", who, "boundary"));
    each.fold(0.0, f64::max)
}

/// Returns the picture with its description.
pub(super) fn figure(families: &[Record]) -> String {
    let [fixed, governor, ours] = BARS.map(|(who, _)| admitted(families, who));
    format!(
        "![Of {LIMIT} per second, a fixed window admits {fixed}, governor {governor}, exact-limiter {ours}](docs/boundary.svg)\n"
    )
}

const LIMIT: f64 = 100.0;
/// Pixels for a request, and where the bars begin. The rest of the picture is drawn by hand.
const SCALE: f64 = 2.2;
const LEFT: f64 = 280.0;

/// Returns the bars of the picture: how much each algorithm admits in its worst window. Above the limit, a bar is red.
pub(super) fn boundary(families: &[Record]) -> String {
    let bar = |(i, (who, label)): (usize, (&str, &str))| {
        let admitted = admitted(families, who);
        let within = admitted.min(LIMIT) * SCALE;
        let above = (admitted - LIMIT).max(0.0) * SCALE;
        let class = if above > 0.0 { "peer" } else { "ours" };
        let y = 88 + 48 * i;
        let base = 108 + 48 * i;
        format!(
            "<text x=\"20\" y=\"{base}\">{label}</text>\n\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{within}\" height=\"30\"/>\n\
             <rect class=\"over\" x=\"{}\" y=\"{y}\" width=\"{above}\" height=\"30\"/>\n\
             <text class=\"head\" x=\"{}\" y=\"{base}\">{admitted}</text>\n",
            LEFT + within,
            LEFT + within + above + 10.0,
        )
    };
    BARS.into_iter().enumerate().map(bar).collect()
}
