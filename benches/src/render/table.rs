//! Tables of Markdown, with a row for every CPU family.

use std::fmt::Write;

use crate::declared::Goal;
use crate::record::Record;

/// This library's name among the contestants.
pub(super) const LIMITER: &str = "limiter";

/// A title, and the cell of a record in the row of an item.
pub type Column<'a, T = String> = (&'a str, Box<dyn Fn(&Record, &T) -> Option<String> + 'a>);

pub(super) fn column<'a, T>(
    title: &'a str,
    cell: impl Fn(&Record, &T) -> Option<String> + 'a,
) -> Column<'a, T> {
    (title, Box::new(cell))
}

/// Returns the column of a contestant's figure in each scenario.
#[must_use]
pub fn figure<'a>(title: &'a str, who: &'a str, measure: &'a str) -> Column<'a> {
    column(title, move |record, scenario: &String| {
        record.get(scenario, who, measure).map(number)
    })
}

/// Returns the column of a figure of each contestant in one scenario, as a multiple of `unit`.
pub(super) fn figure_of_each<'a>(
    title: &'a str,
    scenario: &'a str,
    measure: &'a str,
    unit: f64,
) -> Column<'a> {
    column(title, move |record, who: &String| {
        record
            .get(scenario, who, measure)
            .map(|figure| number(figure / unit))
    })
}

/// Returns the column of the ratio of `who` to another contestant: the median, and the quartiles in brackets.
#[must_use]
pub fn ratio<'a>(title: &'a str, who: &'a str, measure: &str, other: &str) -> Column<'a> {
    let measure = format!("{measure} to {other}");
    column(title, move |record, scenario: &String| {
        let part = |suffix| {
            record
                .get(scenario, who, &format!("{measure}{suffix}"))
                .map(number)
        };
        Some(format!(
            "{} ({} to {})",
            part("")?,
            part(", low")?,
            part(", high")?
        ))
    })
}

/// Returns the columns of contestants in nanoseconds. The first is this library.
pub(super) fn beside<'a>(who: &[&'a str]) -> Vec<Column<'a>> {
    let cell = |who: &'a str| {
        column(who, move |record, scenario: &String| match who {
            LIMITER => Some(format!("**{}**", number(record.get(scenario, who, "ns")?))),
            _ => compared(record, scenario, who, "ns"),
        })
    };
    who.iter().map(|who| cell(who)).collect()
}

/// Returns a peer's figure, and in brackets this library's divided by it, bold if the peer's is less.
pub(super) fn compared(
    record: &Record,
    scenario: &str,
    peer: &str,
    measure: &str,
) -> Option<String> {
    let theirs = record.get(scenario, peer, measure)?;
    let ratio = record.get(scenario, LIMITER, measure)? / theirs;
    let mark = if ratio > 1.0 { "**" } else { "" };
    Some(format!(
        "{} ({mark}{}{mark})",
        number(theirs),
        number(ratio)
    ))
}

/// Returns a table. `head` is the title of the items, and each row is an item with its label. A record without the first cell has no
/// row.
#[must_use]
pub fn table<T>(
    records: &[Record],
    head: &str,
    columns: &[Column<'_, T>],
    rows: impl IntoIterator<Item = (String, T)>,
) -> String {
    let titles: Vec<String> = columns.iter().map(|(title, _)| product(title)).collect();
    let mut out = format!("| {head} | CPU | {} |\n", titles.join(" | "));
    let _ = writeln!(
        out,
        "|{}---|{}",
        "---|".repeat(head.split('|').count()),
        "---:|".repeat(columns.len())
    );
    for (label, item) in rows {
        for record in records {
            let cells: Vec<_> = columns
                .iter()
                .map(|(_, cell)| cell(record, &item))
                .collect();
            if cells[0].is_some() {
                let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
                let _ = writeln!(
                    out,
                    "| {} | {} | {} |",
                    product(&label),
                    record.family(),
                    cells.join(" | ")
                );
            }
        }
    }
    out
}

/// Writes the product's name in full where a text begins with the contestant's.
fn product(text: &str) -> String {
    match text.strip_prefix(LIMITER) {
        Some(rest) if rest.is_empty() || rest.starts_with([' ', ',']) => {
            format!("exact-{LIMITER}{rest}")
        }
        _ => text.to_owned(),
    }
}

/// Returns the label and the name of a scenario.
#[must_use]
pub fn row(name: &str, about: &str) -> (String, String) {
    (format!("`{name}`: {about}"), name.to_owned())
}

/// Returns the table of goals.
#[must_use]
pub fn goals(records: &[Record], what: &str, goals: &[Goal]) -> String {
    let columns = [
        column("measured", |record, goal: &&Goal| {
            goal.measured(record).map(number)
        }),
        column("at most", |_, goal: &&Goal| Some(goal.most.to_string())),
        column("", |record, goal: &&Goal| {
            Some(
                if goal.measured(record)? <= goal.most {
                    "met"
                } else {
                    "**missed**"
                }
                .to_owned(),
            )
        }),
    ];
    table(
        records,
        what,
        &columns,
        goals.iter().map(|goal| (goal.what.clone(), goal)),
    )
}

/// Returns how the figures of a package's group were measured.
#[must_use]
pub fn origin(package: &str, group: &str, records: &[Record]) -> String {
    let line = |Record {
                    machine, versions, ..
                }: &Record| {
        format!("- `cargo run --release -p {package} -- {group}` on {machine}, with {versions}.\n")
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
