//! The README's table of costs and boundary picture.

use std::fmt::Write;

use super::table::{LIMITER, number};
use crate::record::Record;

/// The README's comparisons: a label, the group's position in [`speed`], the scenario, the measure and the peer.
const ROWS: [(&str, usize, &str, &str, &str); 6] = [
    (
        "memory: one busy key, ns",
        0,
        "hot/allowed",
        "ns",
        "governor",
    ),
    (
        "memory: 100,000 keys, 64 requests each, ns",
        1,
        "100000 64 allowed 1",
        "ns",
        "governor",
    ),
    (
        "memory: a key with 10 requests, bytes",
        0,
        "bytes",
        "10",
        "governor",
    ),
    (
        "Redis: 100,000 keys, 10 requests each, µs",
        2,
        "server/keys/allowed/steady",
        "script",
        "GCRA",
    ),
    (
        "Redis: a key with 10 requests, bytes",
        2,
        "bytes/10",
        "bytes",
        "GCRA",
    ),
    (
        "Redis: one busy key with a lease, µs",
        3,
        "hot",
        "time",
        "without a lease",
    ),
];

/// Returns the README's table, with a column for each CPU family: this library's figure, and in brackets its ratio to the peer's.
/// The groups are the records of decisions in memory, of the surface, of Redis, and of leases.
pub(super) fn speed(groups: [&[Record]; 4]) -> String {
    let families: Vec<&str> = groups[0].iter().map(Record::family).collect();
    let mut out = format!("| cost | peer | {} |\n", families.join(" | "));
    let _ = writeln!(out, "|---|---|{}", "---:|".repeat(families.len()));
    for (label, group, scenario, measure, peer) in ROWS {
        let cells: Vec<_> = groups[0]
            .iter()
            .map(|record| {
                let record = record.same_family(groups[group])?;
                let figure = record.get(scenario, LIMITER, measure)?;
                // The median of the ratios in each round, as in RESULTS-REDIS.md, if the group has it.
                let ratio = match record.get(scenario, LIMITER, &format!("{measure} to {peer}")) {
                    Some(ratio) => ratio,
                    None => figure / record.get(scenario, peer, measure)?,
                };
                let mark = if ratio > 1.0 { "**" } else { "" };
                Some(format!(
                    "{} ({mark}{}{mark})",
                    number(figure),
                    number(ratio)
                ))
            })
            .map(Option::unwrap_or_default)
            .collect();
        let _ = writeln!(out, "| {label} | {peer} | {} |", cells.join(" | "));
    }
    out
}

const LIMIT: f64 = 100.0;
/// Pixels for a request, and where the bars begin. The rest of the picture is drawn by hand.
const SCALE: f64 = 2.2;
const LEFT: f64 = 280.0;

/// Returns the bars of the picture: how much each algorithm admits in its worst window. Above the limit, a bar is red.
pub(super) fn boundary(memory: &[Record]) -> String {
    let bars = [
        ("limitador", "limitador: fixed window"),
        ("governor", "governor: GCRA"),
    ];
    let bars = bars
        .into_iter()
        .chain([(LIMITER, "exact-limiter: sliding window log")]);
    let bar = |(i, (who, label)): (usize, (&str, &str))| {
        let admitted = memory
            .iter()
            .filter_map(|record| record.get("admitted", who, "boundary"))
            .fold(0.0, f64::max);
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
    bars.enumerate().map(bar).collect()
}
