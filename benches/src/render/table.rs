//! Tables of Markdown, with a row for every processor family.

use std::fmt::Write;

use crate::declared::Goal;
use crate::record::Record;

/// Returns what a table shows of a record, in the row of an item.
type Cell<'a> = dyn Fn(&Record, &str) -> Option<String> + 'a;

pub(super) struct Column<'a> {
    title: String,
    cell: Box<Cell<'a>>,
}

pub(super) fn column<'a>(title: &str, cell: impl Fn(&Record, &str) -> Option<String> + 'a) -> Column<'a> {
    Column { title: title.to_owned(), cell: Box::new(cell) }
}

/// Returns the column of a number.
pub(super) fn number<'a>(title: &str, decimals: usize, of: impl Fn(&Record, &str) -> Option<f64> + 'a) -> Column<'a> {
    column(title, move |record, item| Some(format!("{:.decimals$}", of(record, item)?)))
}

/// Returns the column of a contestant's figure.
pub(super) fn figure<'a>(title: &str, who: &'a str, measure: &'a str, decimals: usize) -> Column<'a> {
    number(title, decimals, move |record, name| record.get(name, who, measure))
}

/// Returns the column of a contestant's median and 99th percentile.
pub(super) fn latency<'a>(title: &str, who: &'a str) -> Column<'a> {
    column(title, move |record, name| {
        Some(format!("{:.0}, {:.0}", record.get(name, who, "half")?, record.get(name, who, "p99")?))
    })
}

/// Returns the column of the ratio of `who` to another contestant: the median, and the quartiles in brackets.
pub(super) fn ratio<'a>(title: &str, who: &'a str, measure: &str, other: &str) -> Column<'a> {
    let measure = format!("{measure} to {other}");
    column(title, move |record, name| {
        let part = |suffix| record.get(name, who, &format!("{measure}{suffix}"));
        Some(format!("{:.2} ({:.2} to {:.2})", part("")?, part(", low")?, part(", high")?))
    })
}

/// Returns the column of a contestant's nanoseconds in each scenario.
pub(super) fn nanos_of(who: &str) -> Column<'_> {
    column(who, move |record, scenario| record.nanos(scenario, who).map(nanos))
}

/// Returns the columns of contestants. The first is this library. The others have their ratio to it in brackets: the
/// recorded one, or that of the medians.
pub(super) fn beside<'a>(
    who: &[&'a str],
    measure: &'a str,
    show: impl Fn(f64) -> String + Copy + 'a,
) -> Vec<Column<'a>> {
    let ours = who[0];
    let cell = |who: &'a str| {
        let ratio = format!("{measure} to {who}");
        column(who, move |record, scenario| {
            let figure = record.get(scenario, who, measure)?;
            if who == ours {
                return Some(format!("**{}**", show(figure)));
            }
            Some(match (record.get(scenario, ours, &ratio), record.get(scenario, ours, measure)) {
                (Some(ratio), _) => format!("{} ({:.2})", show(figure), 1.0 / ratio),
                (None, Some(ours)) => format!("{} ({:.1})", show(figure), figure / ours),
                (None, None) => show(figure),
            })
        })
    };
    who.iter().map(|who| cell(who)).collect()
}

/// Returns a table. `head` names the items, and each row has an item's label and name. A record without the first cell has
/// no row.
pub(super) fn table(
    records: &[Record],
    head: &str,
    columns: &[Column<'_>],
    rows: impl IntoIterator<Item = (String, String)>,
) -> String {
    let titles: Vec<&str> = columns.iter().map(|column| column.title.as_str()).collect();
    let mut out = format!("| {head} | processor | {} |\n", titles.join(" | "));
    let _ = writeln!(out, "|{}---|{}", "---|".repeat(head.split('|').count()), "---:|".repeat(columns.len()));
    for (label, item) in rows {
        for record in records {
            let cells: Vec<_> = columns.iter().map(|column| (column.cell)(record, &item)).collect();
            if cells[0].is_some() {
                let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
                let _ = writeln!(out, "| {label} | {} | {} |", record.family(), cells.join(" | "));
            }
        }
    }
    out
}

/// Returns the label and the name of a scenario.
pub(super) fn row(name: &str, about: &str) -> (String, String) {
    (format!("`{name}`: {about}"), name.to_owned())
}

/// Returns the table of goals. A goal is met if it is met on all processors.
pub(super) fn goals(records: &[Record], what: &str, goals: &[Goal]) -> String {
    let families: Vec<&str> = records.iter().map(Record::family).collect();
    let rules = "---:|".repeat(families.len() + 2);
    let mut out = format!("| {what} | at most | {} |  |\n|---|{rules}\n", families.join(" | "));
    for goal @ Goal { what, most, .. } in goals {
        let figures: Vec<Option<f64>> = records.iter().map(|record| goal.measured(record)).collect();
        if figures.iter().any(Option::is_some) {
            let met = if figures.iter().flatten().all(|figure| figure <= most) { "met" } else { "**missed**" };
            let shown = |figure: Option<f64>| figure.map_or_else(String::new, |figure| format!("{figure:.2}"));
            let figures: Vec<String> = figures.into_iter().map(shown).collect();
            let _ = writeln!(out, "| {what} | {most} | {} | {met} |", figures.join(" | "));
        }
    }
    out
}

/// Returns how the figures were measured.
pub(super) fn origin(records: &[Record]) -> String {
    let line = |record: &Record| {
        let Record { arguments, machine, versions, .. } = record;
        format!("- `cargo run --release -p limiter-benches -- {arguments}` on {machine}, with {versions}.\n")
    };
    records.iter().map(line).collect()
}

pub(super) fn nanos(nanos: f64) -> String {
    if nanos < 100.0 { format!("{nanos:.1}") } else { format!("{nanos:.0}") }
}

/// Returns the number with its thousands separated by commas.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
