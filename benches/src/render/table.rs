//! Tables of Markdown, with a row for every CPU family.

use std::fmt::Write;

use crate::declared::Goal;
use crate::record::{Group, Record};

/// Returns a record's cell in an item's row.
type Cell<'a> = dyn Fn(&Record, &str) -> Option<String> + 'a;

pub(super) struct Column<'a> {
    title: String,
    cell: Box<Cell<'a>>,
}

pub(super) fn column<'a>(title: &str, cell: impl Fn(&Record, &str) -> Option<String> + 'a) -> Column<'a> {
    Column { title: title.to_owned(), cell: Box::new(cell) }
}

/// Returns the column of a contestant's figure in each scenario.
pub(super) fn figure<'a>(title: &str, who: &'a str, measure: &'a str) -> Column<'a> {
    column(title, move |record, scenario| record.get(scenario, who, measure).map(number))
}

/// Returns the column of a figure of each contestant in one scenario, as a multiple of `unit`.
pub(super) fn figure_of_each<'a>(title: &str, scenario: &'a str, measure: &'a str, unit: f64) -> Column<'a> {
    column(title, move |record, who| record.get(scenario, who, measure).map(|figure| number(figure / unit)))
}

/// Returns the column of a contestant's median and 99th percentile.
pub(super) fn latency<'a>(title: &str, who: &'a str) -> Column<'a> {
    column(title, move |record, scenario| {
        let of = |measure| record.get(scenario, who, measure).map(number);
        Some(format!("{}, {}", of("half")?, of("p99")?))
    })
}

/// Returns the column of the ratio of `who` to another contestant: the median, and the quartiles in brackets.
pub(super) fn ratio<'a>(title: &str, who: &'a str, measure: &str, other: &str) -> Column<'a> {
    let measure = format!("{measure} to {other}");
    column(title, move |record, scenario| {
        let part = |suffix| record.get(scenario, who, &format!("{measure}{suffix}")).map(number);
        Some(format!("{} ({} to {})", part("")?, part(", low")?, part(", high")?))
    })
}

/// Returns the columns of contestants in nanoseconds. The first is this library. The others show its time divided by theirs in
/// brackets, bold if they are faster.
pub(super) fn beside<'a>(who: &[&'a str]) -> Vec<Column<'a>> {
    let ours = who[0];
    let cell = |who: &'a str| {
        column(who, move |record, scenario| {
            let nanos = number(record.nanos(scenario, who)?);
            Some(match record.ratio(scenario, ours, who) {
                _ if who == ours => format!("**{nanos}**"),
                None => nanos,
                Some(ratio) if ratio > 1.0 => format!("{nanos} (**{}**)", number(ratio)),
                Some(ratio) => format!("{nanos} ({})", number(ratio)),
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
    let mut out = format!("| {head} | CPU | {} |\n", titles.join(" | "));
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

/// Returns the table of goals. A goal is met if it is met on all CPUs.
pub(super) fn goals(records: &[Record], what: &str, goals: &[Goal]) -> String {
    let families: Vec<&str> = records.iter().map(Record::family).collect();
    let rules = "---:|".repeat(families.len() + 2);
    let mut out = format!("| {what} | at most | {} |  |\n|---|{rules}\n", families.join(" | "));
    for goal @ Goal { what, most, .. } in goals {
        let figures: Vec<Option<f64>> = records.iter().map(|record| goal.measured(record)).collect();
        if figures.iter().any(Option::is_some) {
            let met = if figures.iter().flatten().all(|figure| figure <= most) { "met" } else { "**missed**" };
            let figures: Vec<String> =
                figures.into_iter().map(|figure| figure.map_or_else(String::new, number)).collect();
            let _ = writeln!(out, "| {what} | {most} | {} | {met} |", figures.join(" | "));
        }
    }
    out
}

/// Returns how the figures were measured.
pub(super) fn origin(group: Group, records: &[Record]) -> String {
    let line = |Record { machine, versions, .. }: &Record| {
        format!("- `cargo run --release -p limiter-benches -- {}` on {machine}, with {versions}.\n", group.name())
    };
    records.iter().map(line).collect()
}

/// Returns a figure with three digits, or all before the point.
pub(super) fn number(figure: f64) -> String {
    match figure {
        _ if figure.fract() == 0.0 || figure >= 100.0 => format!("{figure:.0}"),
        _ if figure >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}
