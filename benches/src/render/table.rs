//! Tables of Markdown, with a row for every CPU family.

use std::fmt::Write;

use crate::record::Record;

/// This library's name among the contestants.
pub(super) const LIMITER: &str = "limiter";

/// A title, and the cell of a record in the row of an item: a scenario or a contestant.
pub(super) type Column<'a> = (&'a str, Box<dyn Fn(&Record, &str) -> Option<String> + 'a>);

pub(super) fn column<'a>(
    title: &'a str,
    cell: impl Fn(&Record, &str) -> Option<f64> + 'a,
) -> Column<'a> {
    let cell = move |record: &Record, item: &str| cell(record, item).map(number);
    (title, Box::new(cell))
}

/// Returns the column of a contestant's figure in each scenario.
pub(super) fn figure<'a>(title: &'a str, who: &'a str, measure: &'a str) -> Column<'a> {
    column(title, move |record, scenario| {
        record.get(scenario, who, measure)
    })
}

/// Returns the column of a peer's figure in each scenario, and in brackets this library's divided by it, bold if the peer's is less.
pub(super) fn peer<'a>(who: &'a str, measure: &'a str) -> Column<'a> {
    let cell = move |record: &Record, scenario: &str| {
        let theirs = record.get(scenario, who, measure)?;
        let ratio = record.get(scenario, LIMITER, measure)? / theirs;
        Some(format!("{} ({})", number(theirs), emphasized(ratio)))
    };
    (who, Box::new(cell))
}

/// Returns a table. `head` is the title of the items, and each row is an item with its label. A record without the first cell has no
/// row, and families with the same cells share one.
pub(super) fn table(
    records: &[Record],
    head: &str,
    columns: &[Column<'_>],
    rows: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
) -> String {
    let titles: Vec<String> = columns.iter().map(|(title, _)| product(title)).collect();
    let mut out = format!("| {head} | CPU | {} |\n", titles.join(" | "));
    let items = "---|".repeat(head.split('|').count());
    let _ = writeln!(out, "|{items}---|{}", "---:|".repeat(columns.len()));
    for (label, item) in rows {
        let mut each = Vec::new();
        for record in records {
            let cells = columns.iter().map(|(_, cell)| cell(record, item.as_ref()));
            let cells: Vec<_> = cells.collect();
            if cells[0].is_some() {
                let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
                each.push((record.family(), cells.join(" | ")));
            }
        }
        if each.len() > 1 && each.iter().all(|(_, cells)| *cells == each[0].1) {
            each.truncate(1);
            each[0].0 = "all";
        }
        for (family, cells) in each {
            let label = product(label.as_ref());
            let _ = writeln!(out, "| {label} | {family} | {cells} |");
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

/// Returns a figure with three digits, or all before the point.
pub(super) fn number(figure: f64) -> String {
    match figure {
        _ if figure >= 10_000.0 => grouped(figure),
        _ if figure.fract() == 0.0 || figure >= 100.0 => format!("{figure:.0}"),
        _ if figure >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// Returns a ratio, bold if the peer's figure is less than this library's.
pub(super) fn emphasized(ratio: f64) -> String {
    let mark = if ratio > 1.0 { "**" } else { "" };
    format!("{mark}{}{mark}", number(ratio))
}

/// Returns a rate that is no higher than the figure, with two digits.
pub(super) fn rate(figure: f64) -> String {
    let digits = 10_f64.powf(figure.log10().floor() - 1.0);
    grouped((figure / digits).floor() * digits)
}

/// Returns a whole number with a comma before each three digits.
fn grouped(figure: f64) -> String {
    let mut text = format!("{figure:.0}");
    let digits = text.len();
    for i in (3..digits).step_by(3) {
        text.insert(digits - i, ',');
    }
    text
}
