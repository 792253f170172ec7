//! The summary as a table.

use std::io::{self, Write};
use std::time::Duration;

use limiter_core::{Counting, Policy};

use super::summary::{CountedKey, Summary};
use crate::text;

/// The number of keys in each table.
const KEYS_PER_TABLE: usize = 5;

/// The maximum width of a key.
const MAX_KEY_CHARS: usize = 40;

/// Prints a summary as text.
pub(super) fn print(
    out: &mut impl Write,
    summary: &Summary,
    skipped: u64,
    policy: &Policy,
    elapsed: Duration,
) -> io::Result<()> {
    let counting = match policy.counting() {
        Counting::Admitted => "admitted",
        Counting::Attempts => "attempts",
    };
    let decided = summary.allowed + summary.denied;
    let rows = summary.rows;
    writeln!(out, "limit     {policy}, counting {counting}")?;
    writeln!(out, "rows      {rows:>12}")?;
    writeln!(out, "keys      {:>12}", summary.keys.len())?;
    writeln!(
        out,
        "allowed   {:>12}  {}",
        summary.allowed,
        percent(summary.allowed, decided)
    )?;
    writeln!(
        out,
        "denied    {:>12}  {}",
        summary.denied,
        percent(summary.denied, decided)
    )?;
    writeln!(out, "errors    {:>12}", summary.refused)?;
    for (name, count) in [
        ("recorded", summary.recorded),
        ("resets", summary.resets),
        ("skipped", skipped),
    ] {
        if count > 0 {
            writeln!(out, "{name:<10}{count:>12}")?;
        }
    }
    if let Some((from, to)) = summary.span {
        let relative = text::is_relative(to);
        let from_text = text::date_time(from, relative);
        let to_text = text::date_time(to, relative);
        writeln!(
            out,
            "time      {from_text} to {to_text} ({})",
            text::duration(to.micros_since(from))
        )?;
    }
    table(out, "busiest keys", &summary.busiest(KEYS_PER_TABLE))?;
    table(
        out,
        "most denied keys",
        &summary.most_denied(KEYS_PER_TABLE),
    )?;
    let seconds = elapsed.as_secs_f64().max(1e-9);
    writeln!(
        out,
        "\n{rows} operations in {seconds:.3} s: {:.0} operations/s",
        rows as f64 / seconds
    )
}

fn percent(part: u64, of: u64) -> String {
    if of == 0 {
        String::new()
    } else {
        format!("{:5.1} %", 100.0 * part as f64 / of as f64)
    }
}

fn table(out: &mut impl Write, title: &str, keys: &[CountedKey<'_>]) -> io::Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = keys
        .iter()
        .map(|(key, _)| text::key(key, MAX_KEY_CHARS))
        .collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .fold(title.len(), usize::max);
    writeln!(
        out,
        "\n{title:<width$}  {:>10}  {:>10}  {:>8}  {:>9}",
        "rows", "denied", "", "peak use"
    )?;
    for (name, (_, count)) in names.iter().zip(keys) {
        let denied = percent(count.denied, count.rows);
        let peak = 100.0 * count.peak.0;
        writeln!(
            out,
            "{name:<width$}  {:>10}  {:>10}  {denied:>8}  {peak:>7.0} %",
            count.rows, count.denied
        )?;
    }
    Ok(())
}
