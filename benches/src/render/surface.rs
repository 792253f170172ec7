//! The sections of the surface.

use super::Sections;
use super::table::{beside, figure, number, origin, table};
use crate::memory::surface::{Cell, LIBRARIES};
use crate::record::{Group, Record};

const LIMITER: &str = LIBRARIES[0].name;

pub(super) fn sections(records: &[Record]) -> Sections {
    let mut columns = beside(&LIBRARIES.map(|library| library.name));
    columns.push(figure("held", LIMITER, "held"));
    let row = |cell: Cell| {
        let Cell { keys, entries, allowed, threads } = cell;
        let verdict = if allowed { "allowed" } else { "exhausted" };
        (format!("{keys} | {entries} | {verdict} | {threads}"), cell.to_string())
    };
    Sections::from([
        ("surface-origin", origin(Group::Surface, records)),
        ("surface", table(records, "keys | entries | verdict | threads", &columns, Cell::all().map(row))),
        ("speed-faster", records.iter().map(faster).collect()),
    ])
}

/// Returns in how many cells governor is faster, and by how much at most.
fn faster(record: &Record) -> String {
    let cells = |peer| {
        let ratios: Vec<f64> = Cell::all().filter_map(|cell| record.ratio(&cell.to_string(), LIMITER, peer)).collect();
        let faster = ratios.iter().filter(|ratio| **ratio > 1.0).count();
        let most = ratios.iter().copied().fold(1.0, f64::max);
        format!("in {faster} of {} cells (up to {} times)", ratios.len(), number(most))
    };
    let [shipped, foldhash] = [1, 2].map(|i| cells(LIBRARIES[i].name));
    let family = record.family();
    format!("- On {family}, governor is faster as shipped {shipped}, and with this library's hasher {foldhash}.\n")
}
