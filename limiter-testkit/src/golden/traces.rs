//! Reads the golden traces.

use std::sync::LazyLock;

use limiter_core::store::Mode;
use limiter_core::{Counting, Policy};

use super::trace::{Row, RowAnswer, Trace};

/// Returns the golden traces.
#[must_use]
pub fn traces() -> &'static [Trace] {
    static TRACES: LazyLock<Vec<Trace>> = LazyLock::new(|| parse(include_str!("traces.txt")));
    &TRACES
}

/// Parses traces. Leaves out what it cannot parse; a test counts the rows.
fn parse(text: &'static str) -> Vec<Trace> {
    let mut traces: Vec<(Trace, Vec<Row>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("    "), traces.last_mut()) {
            (Some(line), Some((_, rows))) => rows.extend(row(line)),
            _ => traces.extend(head(line).map(|trace| (trace, Vec::new()))),
        }
    }
    traces.into_iter().map(|(trace, rows)| Trace { rows: rows.leak(), ..trace }).collect()
}

fn head(line: &'static str) -> Option<Trace> {
    let mut parts = line.split(" | ");
    let (name, limits) = (parts.next()?, limits(parts.next()?)?);
    let counting = if parts.next() == Some("attempts") { Counting::Attempts } else { Counting::Admitted };
    Some(Trace { name, limits, counting, rows: &[] })
}

fn limits(text: &str) -> Option<&'static [(u64, u64)]> {
    let policy: Policy = text.parse().ok()?;
    let limits: Vec<_> = policy.limits().iter().map(|limit| (limit.max(), limit.window().as_micros())).collect();
    Some(limits.leak())
}

fn row(line: &str) -> Option<Row> {
    let (operation, answer) = line.split_once(": ")?;
    let (operation, is_another) = match operation.strip_suffix(" by another limiter") {
        Some(operation) => (operation, true),
        None => (operation, false),
    };
    let (operation, own_limits) = match operation.split_once(" under ") {
        Some((operation, own)) => (operation, limits(own)?),
        None => (operation, &[][..]),
    };
    let [at, mode, cost] = operation.split(' ').collect::<Vec<_>>()[..] else { return None };
    let mode = match mode {
        "acquire" => Mode::Acquire,
        "peek" => Mode::Peek,
        _ => Mode::Record,
    };
    let (answer, used_each) = answer.split_once(" each ").unwrap_or((answer, ""));
    let used_each: Vec<u64> = used_each.split_whitespace().filter_map(|used| used.parse().ok()).collect();
    Some(Row {
        at: at.parse().ok()?,
        mode,
        cost: cost.parse().ok()?,
        own_limits,
        limiter: usize::from(is_another),
        used_each: used_each.leak(),
        answer: if answer == "refused" { None } else { Some(row_answer(answer)?) },
    })
}

fn row_answer(text: &str) -> Option<RowAnswer> {
    let (verdict, rest) = text.split_once(' ')?;
    let (usage, times) = rest.split_once(' ')?;
    let (used, limit) = usage.split_once('/')?;
    let (used, limit) = (used.parse().ok()?, limit.parse::<u64>().ok()?);
    let times: Vec<u64> = times.split(' ').filter_map(|time| time.parse().ok()).collect();
    let (retry_after, refill_after, reset_after) = match (verdict, &times[..]) {
        ("allowed", &[refill, reset]) => (None, refill, reset),
        ("denied", &[retry, refill, reset]) => (Some(retry), refill, reset),
        _ => return None,
    };
    let (allowed, remaining) = (retry_after.is_none(), limit.checked_sub(used)?);
    Some(RowAnswer { allowed, limit, used, remaining, retry_after, refill_after, reset_after })
}
