//! The README's speed table and boundary picture.

use super::table::{LIMITER, column, compared, number, table};
use crate::record::Record;

/// The README's comparisons: a label, the group's position in [`speed`], the scenario, the measure and the peer.
const ROWS: [(&str, usize, &str, &str, &str); 3] = [
    ("one hot key, ns", 0, "hot/allowed", "ns", "governor"),
    (
        "100,000 keys, 64 entries each, ns",
        1,
        "100000 64 allowed 1",
        "ns",
        "governor",
    ),
    (
        "Redis: 100,000 keys, 10 entries each, µs",
        2,
        "server/keys/allowed/steady",
        "script",
        "GCRA",
    ),
];

/// Returns the README's table. The groups are the records of decisions in memory, of the surface, and of Redis.
pub(super) fn speed(groups: [&[Record]; 3]) -> String {
    let columns = [
        column("limiter", move |record, &(group, scenario, measure, _)| {
            Some(number(
                record
                    .same_family(groups[group])?
                    .get(scenario, LIMITER, measure)?,
            ))
        }),
        column("peer", move |record, &(group, scenario, measure, peer)| {
            Some(format!(
                "{peer} {}",
                compared(record.same_family(groups[group])?, scenario, peer, measure)?
            ))
        }),
    ];
    let rows = ROWS.map(|(label, group, scenario, measure, peer)| {
        (label.to_owned(), (group, scenario, measure, peer))
    });
    table(groups[0], "time per decision", &columns, rows)
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
        let (within, above) = (
            admitted.min(LIMIT) * SCALE,
            (admitted - LIMIT).max(0.0) * SCALE,
        );
        let class = if above > 0.0 { "peer" } else { "ours" };
        let (y, base) = (88 + 48 * i, 108 + 48 * i);
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
