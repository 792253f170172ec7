//! The sections of the surface.

use super::Sections;
use super::table::{column, nanos, nanos_of, number, origin, table, thousands};
use crate::local::FLOOR;
use crate::local::surface::{CONTESTANTS, Cell, ENTRIES, KEYS};
use crate::record::Record;

const LIMITER: &str = "limiter";
const GOVERNOR: &str = CONTESTANTS[1].name;
const FOLDHASH: &str = CONTESTANTS[2].name;
/// governor counts as faster from this ratio on. Runs differ by less.
const SLOWER: f64 = 1.05;

/// Returns the path of a record's heat map.
pub(super) fn plot(record: &Record) -> String {
    format!("docs/bench-surface-{}.svg", record.family().to_lowercase())
}

pub(crate) fn sections(records: &[Record]) -> Sections {
    let peer = |name| {
        column(name, move |record, cell| {
            let ratio = record.ratio(cell, LIMITER, name)?;
            let shown = if ratio > 1.0 { format!("**{ratio:.2}**") } else { format!("{ratio:.2}") };
            Some(format!("{} ({shown})", nanos(record.nanos(cell, name)?)))
        })
    };
    let mut columns = vec![nanos_of(LIMITER)];
    columns.extend(CONTESTANTS[1..4].iter().map(|contestant| peer(contestant.name)));
    columns.extend([nanos_of(FLOOR.name), number("held", 1, |record, cell| record.get(cell, LIMITER, "held"))]);
    let row = |cell: Cell| {
        let Cell { keys, entries, allowed, threads } = cell;
        let verdict = if allowed { "allowed" } else { "used up" };
        (format!("{} | {entries} | {verdict} | {threads}", thousands(keys)), cell.to_string())
    };
    let images = |to_root: &str| -> String {
        let image = |record: &Record| {
            format!("![Time on {} as a multiple of governor's]({to_root}{})\n\n", record.family(), plot(record))
        };
        records.iter().map(image).collect::<String>().trim_end().to_owned() + "\n"
    };
    Sections::from([
        ("surface-origin", origin(records)),
        ("surface-plots", images("../")),
        ("surface", table(records, "keys | entries | verdict | threads", &columns, Cell::all().map(row))),
        ("speed-origin", origin(records)),
        ("speed-allowed", one_thread(records, "all requests allowed", true)),
        ("speed-used-up", one_thread(records, "limits used up", false)),
        ("speed-faster", records.iter().map(faster).collect()),
        ("speed-plots", images("")),
    ])
}

/// Returns a table of the README: this library's time, and how many times as long governor takes.
fn one_thread(records: &[Record], head: &str, allowed: bool) -> String {
    let cell = |entries| {
        column(&format!("{entries} per log"), move |record, keys| {
            let cell = Cell { keys: keys.parse().ok()?, entries, allowed, threads: 1 }.to_string();
            let Some(ours) = record.nanos(&cell, LIMITER) else { return Some(String::new()) };
            let times = |peer| Some(record.nanos(&cell, peer)? / ours);
            Some(format!("**{}**, {:.1}x, {:.1}x", nanos(ours), times(GOVERNOR)?, times(FOLDHASH)?))
        })
    };
    let label = |keys| format!("{} {}", thousands(keys), if keys == 1 { "key" } else { "keys" });
    table(records, head, &ENTRIES.map(cell), KEYS.map(|keys| (label(keys), keys.to_string())))
}

/// Returns in how many cells governor is faster, and by how much at most.
fn faster(record: &Record) -> String {
    let cells = |peer| {
        let ratios: Vec<f64> = Cell::all().filter_map(|cell| record.ratio(&cell.to_string(), LIMITER, peer)).collect();
        let faster = ratios.iter().filter(|ratio| **ratio > SLOWER).count();
        format!("in {faster} of {} cells (up to {:.1} times)", ratios.len(), ratios.iter().copied().fold(1.0, f64::max))
    };
    let (shipped, foldhash, family) = (cells(GOVERNOR), cells(FOLDHASH), record.family());
    format!("- On {family}, governor is faster as shipped {shipped}, and with this library's hasher {foldhash}.\n")
}
