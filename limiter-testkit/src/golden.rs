//! Worked examples decided by hand. Every backend and every front end returns exactly these results.

use std::collections::HashMap;
use std::sync::LazyLock;

use limiter_core::Policy;

use crate::case::{CaseLimiter, Step};
use crate::script::{self, Script};

/// A sequence of operations on one new key, with the result of each.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The name.
    pub name: String,
    /// The policies. The first is the default of both limiters.
    pub policies: Vec<Policy>,
    /// The operations, in order.
    pub rows: Vec<Row>,
    pub(crate) script: Script,
}

/// An operation of a [`Trace`] and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The time given with the operation, in microseconds.
    pub at: u64,
    /// The operation. Limiter 1 has another name on the same store.
    pub step: Step,
    /// The usage of each limit. Empty if the trace does not state it.
    pub used_each: Vec<u64>,
    /// The result. `None` if the operation is refused because its cost can never fit.
    pub result: Option<RowResult>,
}

/// The result of a [`Row`], for the binding limit. Times are in microseconds after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the other fields are the decision's")]
pub struct RowResult {
    /// Whether the operation fits, or the renewal takes effect.
    pub succeeds: bool,
    /// The maximum of the binding limit.
    pub limit: u64,
    pub used: u64,
    pub remaining: u64,
    pub retry_after: Option<u64>,
    pub refill_after: u64,
    pub reset_after: u64,
}

/// Returns the golden traces, among them bugs of other limiters.
#[must_use]
pub fn traces() -> &'static [Trace] {
    static TRACES: LazyLock<Vec<Trace>> = LazyLock::new(|| {
        let texts = [
            include_str!("golden/traces.txt"),
            include_str!("golden/known_bugs.txt"),
        ];
        let blocks = texts.into_iter().flat_map(|text| text.split("\n\n"));
        // A test counts the traces and the rows.
        blocks.filter_map(trace).collect()
    });
    &TRACES
}

fn trace(block: &str) -> Option<Trace> {
    let mut lines = block.lines().filter(|line| !line.starts_with('#'));
    let mut script = script::head_of(lines.next()?)?;
    script.case.limiters = [0, 1]
        .map(|name| CaseLimiter {
            name,
            policy: Some(0),
        })
        .to_vec();
    script.case.start = 0;
    let mut about = script.citations.remove(0);
    let mut called = HashMap::new();
    let mut rows = Vec::new();
    let mut last = 0;
    for line in lines {
        let mut columns = line.split('|').map(str::trim);
        let (at, step) = columns.next()?.split_once(' ')?;
        let (step, times) = step.split_once(" x ").unwrap_or((step, "1"));
        let at = micros(at)?;
        let result = result(columns.next()?);
        let used = columns.next().unwrap_or_default().split_whitespace();
        let used: Vec<u64> = used.filter_map(|used| used.parse().ok()).collect();
        for time in 0..times.trim().parse().ok()? {
            let text = format!("{} after {}", step.trim(), at as i64 - last as i64);
            script::add_step(&mut script, &mut about, &mut called, &text)?;
            last = at;
            let step = *script.case.steps.last()?;
            let mut row = Row {
                at,
                step,
                used_each: used.clone(),
                result,
            };
            // Each repetition finds the usage larger by the cost.
            if let Some(result) = row.result.as_mut().filter(|result| result.succeeds) {
                result.used += time * step.cost;
                result.remaining = result.limit.saturating_sub(result.used);
            }
            rows.push(row);
        }
    }
    Some(Trace {
        name: script.name.clone(),
        policies: script.case.policies.clone(),
        rows,
        script,
    })
}

fn result(text: &str) -> Option<RowResult> {
    let mut words = text.split(' ');
    let verdict = words.next()?;
    let (used, limit) = words.next()?.split_once('/')?;
    let used = used.parse().ok()?;
    let limit = limit.parse::<u64>().ok()?;
    let mut time = || micros(words.next()?);
    Some(RowResult {
        succeeds: verdict == "A",
        limit,
        used,
        remaining: limit.checked_sub(used)?,
        retry_after: if verdict == "D" { Some(time()?) } else { None },
        refill_after: time()?,
        reset_after: time()?,
    })
}

fn micros(seconds: &str) -> Option<u64> {
    let seconds: f64 = seconds.parse().ok()?;
    Some((seconds * 1e6).round() as u64)
}
