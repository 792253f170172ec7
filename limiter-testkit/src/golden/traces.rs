//! Reads the golden traces.

use std::sync::LazyLock;

use limiter_core::Counting;
use limiter_core::store::Mode;

use super::{Row, RowAnswer, Trace};

/// Returns the golden traces.
#[must_use]
pub fn traces() -> &'static [Trace] {
    static TRACES: LazyLock<Vec<Trace>> = LazyLock::new(|| parse(include_str!("traces.txt")));
    &TRACES
}

/// Parses traces that are written like the golden ones. Skips rows that it cannot parse, so count traces and rows.
#[must_use]
pub fn parse(text: &'static str) -> Vec<Trace> {
    text.split("\n\n")
        .filter_map(|block| trace(block.lines().filter(|line| !line.starts_with('#'))))
        .collect()
}

fn trace(mut lines: impl Iterator<Item = &'static str>) -> Option<Trace> {
    let mut columns = lines.next()?.split(" | ");
    let (name, limits) = (columns.next()?, columns.next()?);
    let counting = if columns.next() == Some("attempts") {
        Counting::Attempts
    } else {
        Counting::Admitted
    };
    let rows: Vec<Row> = lines.filter_map(rows).flatten().collect();
    Some(Trace {
        name,
        limits,
        counting,
        rows: rows.leak(),
    })
}

/// Parses one line, which may repeat its row.
fn rows(line: &'static str) -> Option<impl Iterator<Item = Row>> {
    let mut columns = line.split(" | ");
    let mut words = columns.next()?.split_whitespace();
    let at = micros(words.next()?)?;
    let answer = answer(columns.next()?);
    let used_each: Vec<u64> = columns
        .next()
        .unwrap_or("")
        .split(' ')
        .filter_map(|used| used.parse().ok())
        .collect();
    let used_each = used_each.leak();
    let mut row = Row {
        at,
        mode: Mode::Acquire,
        cost: 1,
        own_limits: "",
        limiter: 0,
        used_each,
        answer,
    };
    let mut times = 1;
    while let Some(word) = words.next() {
        match word {
            "peek" => row.mode = Mode::Peek,
            "record" => row.mode = Mode::Record,
            "cost" => row.cost = words.next()?.parse().ok()?,
            "under" => row.own_limits = words.next()?,
            "elsewhere" => row.limiter = 1,
            "x" => times = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some((0..times).map(move |time| {
        let mut row = row;
        if let Some(answer) = row.answer.as_mut().filter(|answer| answer.allowed) {
            answer.used += time * row.cost;
            answer.remaining = answer.limit.saturating_sub(answer.used);
        }
        row
    }))
}

fn answer(text: &str) -> Option<RowAnswer> {
    let (verdict, text) = text.split_once(' ')?;
    let (usage, times) = text.split_once(' ')?;
    let (used, limit) = usage.split_once('/')?;
    let (used, limit) = (used.parse().ok()?, limit.parse::<u64>().ok()?);
    let times: Vec<u64> = times.split(' ').filter_map(micros).collect();
    let (retry_after, refill_after, reset_after) = match (verdict, &times[..]) {
        ("A", &[refill, reset]) => (None, refill, reset),
        ("D", &[retry, refill, reset]) => (Some(retry), refill, reset),
        _ => return None,
    };
    let (allowed, remaining) = (retry_after.is_none(), limit.checked_sub(used)?);
    Some(RowAnswer {
        allowed,
        limit,
        used,
        remaining,
        retry_after,
        refill_after,
        reset_after,
    })
}

fn micros(seconds: &str) -> Option<u64> {
    seconds
        .parse::<f64>()
        .ok()
        .map(|seconds| (seconds * 1e6).round() as u64)
}
