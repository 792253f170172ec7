//! The tables of the surface.

use std::fmt::Write;

use super::floor::Floor;
use super::{Cell, ENTRIES, Figures, KEYS, Surface, THREADS};
use crate::libraries::{Governor, GovernorFoldhash, Library, Now, Trypema};
use crate::report::{heading, nanos, table};

const PEERS: [&str; 3] = [Governor::NAME, GovernorFoldhash::NAME, Trypema::<100>::NAME];

/// Returns the section of `RESULTS.md`.
#[must_use]
pub fn markdown(surface: &Surface) -> String {
    let mut out = String::new();
    let text = "Random keys, each with a log of the given number of entries. *Allowed*: every request is allowed, and entries \
         expire as fast as requests come. *Used up*: every request is denied. Medians in wall-clock nanoseconds per decision, all threads \
         together; in brackets, this library's time as a multiple of the peer's. A multiple above 1 is bold: the peer is faster.\n\n\
         - A peer without a log has a window a thousand times longer where limits are used up, so that no unit frees during a turn.\n\
         - *governor foldhash*: governor with the hasher that this library uses.\n\
         - *floor*: a program that touches only what any exact log must touch. It reads the clock, hashes the key, probes a \
         table, reads the oldest entry and writes the newest. It has no lock, no window and no decision.\n\
         - *held*: the mean entries per log when the measurement ended, expired ones included.\n\
         - Cells with more than 33 million entries are left out, because they take gigabytes. So are cells of one allowed key \
         with fewer than 64 entries: even the shortest window, a microsecond, holds more.\n\n\
         ![This library's time as a multiple of governor's](../docs/bench-surface.svg)";
    heading(&mut out, "The surface", text);
    let columns = [&[Now::NAME][..], &PEERS, &[Floor::NAME, "held"]].concat();
    table(&mut out, &["keys", "entries", "verdict", "threads"], &columns);
    for figures in &surface.cells {
        let Cell { keys, entries, allowed, threads } = figures.cell;
        let verdict = if allowed { "allowed" } else { "used up" };
        let Some(ours) = figures.nanos(Now::NAME) else { continue };
        let _ = write!(out, "| {} | {entries} | {verdict} | {threads} | {} |", thousands(keys), nanos(ours));
        for peer in PEERS {
            let _ = write!(out, " {} |", figures.nanos(peer).map_or_else(String::new, |time| beside(ours, time)));
        }
        let floor = figures.nanos(Floor::NAME).map_or_else(String::new, nanos);
        let _ = writeln!(out, " {floor} | {:.1} |", figures.held);
    }
    out
}

fn beside(ours: f64, peer: f64) -> String {
    let ratio = ours / peer;
    let shown = if ratio > 1.0 { format!("**{ratio:.2}**") } else { format!("{ratio:.2}") };
    format!("{} ({shown})", nanos(peer))
}

/// Appends the tables of the README: how many times as long governor takes as this library, for one thread.
pub fn readme_table(out: &mut String, surface: &Surface) {
    for (allowed, title) in [(true, "all requests allowed"), (false, "limits used up")] {
        let columns: Vec<String> = ENTRIES.iter().map(|entries| format!("{entries} per log")).collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        table(out, &[title], &columns);
        for keys in KEYS {
            let _ = write!(out, "| {} {} |", thousands(keys), if keys == 1 { "key" } else { "keys" });
            for entries in ENTRIES {
                let figures = surface.of(Cell { keys, entries, allowed, threads: 1 });
                let _ = write!(out, " {} |", figures.and_then(readme_cell).unwrap_or_default());
            }
            out.push('\n');
        }
        out.push('\n');
    }
    let of_threads = |threads: &usize| {
        let threads = *threads;
        surface.cells.iter().filter(move |figures| figures.cell.threads == threads)
    };
    let slower: Vec<_> = THREADS
        .iter()
        .flat_map(of_threads)
        .filter_map(|figures| Some((figures.cell, where_slower(figures)?)))
        .collect();
    if slower.is_empty() {
        out.push_str("governor was faster in no cell, with either hasher.\n");
        return;
    }
    let range = |of: fn(&Cell) -> usize| {
        let numbers = || slower.iter().map(|(cell, _)| of(cell));
        let (least, most) = (numbers().min().unwrap_or_default(), numbers().max().unwrap_or_default());
        if least == most { thousands(most) } else { format!("{} to {}", thousands(least), thousands(most)) }
    };
    let _ = write!(
        out,
        "governor is faster {} and {}. Those cells have {} keys and {} entries per log.\n\n\
         <details><summary>Every cell where governor is faster</summary>\n\n{}\n</details>\n",
        share_of_cells(surface, Governor::NAME, "as shipped"),
        share_of_cells(surface, GovernorFoldhash::NAME, "with this library's hasher"),
        range(|cell| cell.keys),
        range(|cell| cell.entries as usize),
        slower.iter().map(|(_, line)| line.as_str()).collect::<String>()
    );
}

fn readme_cell(figures: &Figures) -> Option<String> {
    let ours = figures.nanos(Now::NAME)?;
    let times = |peer| Some(format!("{:.1}x", figures.nanos(peer)? / ours));
    Some(format!("**{}**, {}, {}", nanos(ours), times(Governor::NAME)?, times(GovernorFoldhash::NAME)?))
}

/// Returns in how many cells a peer is faster by more than 5 %, and by how much at most.
fn share_of_cells(surface: &Surface, peer: &str, how: &str) -> String {
    let ratios: Vec<f64> = surface.cells.iter().filter_map(|figures| figures.ratio(peer)).collect();
    let faster = ratios.iter().filter(|ratio| **ratio > 1.05).count();
    let most = ratios.iter().copied().fold(1.0, f64::max);
    format!("{how} in {faster} of {} cells (up to {most:.1} times)", ratios.len())
}

/// Returns a line if governor was faster by more than 5 %, which is less than runs differ by.
fn where_slower(figures: &Figures) -> Option<String> {
    let [shipped, foldhash] = [figures.ratio(Governor::NAME)?, figures.ratio(GovernorFoldhash::NAME)?];
    if shipped.max(foldhash) <= 1.05 {
        return None;
    }
    let Cell { keys, entries, allowed, threads } = figures.cell;
    let verdict = if allowed { "allowed" } else { "used up" };
    let threads = if threads == 1 { "one thread" } else { "two threads" };
    let times = |ratio: f64| if ratio > 1.05 { format!("{ratio:.2} times as fast") } else { "not faster".to_owned() };
    let keys = thousands(keys);
    Some(format!(
        "- {keys} keys, {entries} per log, {verdict}, {threads}: as shipped {}; with foldhash {}.\n",
        times(shipped),
        times(foldhash)
    ))
}

/// Returns the number with its thousands separated by commas.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measured;

    #[test]
    fn cells_are_shown_with_both_ratios_and_named_if_governor_is_faster() {
        let measured = |library: &str, nanos| Measured { library: library.to_owned(), nanos };
        let cell = Cell { keys: 10_000, entries: 64, allowed: true, threads: 1 };
        let medians =
            vec![measured(Now::NAME, 40.0), measured(Governor::NAME, 60.0), measured(GovernorFoldhash::NAME, 32.0)];
        let surface = Surface { cells: vec![Figures { cell, held: 63.5, medians }] };
        let text = markdown(&surface);
        assert!(text.contains("| 10,000 | 64 | allowed | 1 | 40.0 | 60.0 (0.67) | 32.0 (**1.25**) |"), "{text}");
        let mut readme = String::new();
        readme_table(&mut readme, &surface);
        assert!(readme.contains("| 10,000 keys |  |  |  | **40.0**, 1.5x, 0.8x |"), "{readme}");
        assert!(
            readme.contains("10,000 keys, 64 per log, allowed, one thread: as shipped not faster; with foldhash 1.25")
        );
        assert_eq!([7, 1000, 1_234_567].map(thousands), ["7", "1,000", "1,234,567"]);
    }
}
