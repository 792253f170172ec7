//! Worked examples decided by hand. Every backend and every front end returns exactly these results.

use std::sync::LazyLock;
use std::time::Duration;

use limiter_core::store::Mode;
use limiter_core::{Counting, Decision, Error, Policy, Status};

use crate::answer::Answer;

/// A sequence of operations on one new key, with the result of each.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// The name.
    pub name: &'static str,
    /// The limits of the default policy, such as `"3/1s, 5/5s"`.
    pub limits: &'static str,
    /// Which acquires the policy counts.
    pub counting: Counting,
    /// The operations, in order.
    pub rows: &'static [Row],
}

/// An operation of a [`Trace`] and its result.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The time given with the operation, in microseconds.
    pub at: u64,
    /// Whether it acquires, peeks or records.
    pub mode: Mode,
    /// The cost.
    pub cost: u64,
    /// The limits of the operation's policy. Empty for the default policy.
    pub own_limits: &'static str,
    /// The limiter: 0, or 1 for one with another name on the same store.
    pub limiter: usize,
    /// The idempotency key, a small number.
    pub id: Option<u8>,
    /// The row whose entry it renews, counted from 0. It is then no other operation.
    pub renews: Option<usize>,
    /// The usage of each limit. Empty if the trace does not state it.
    pub used_each: &'static [u64],
    /// The result. `None` if the operation is refused because its cost can never fit.
    pub answer: Option<RowAnswer>,
}

/// The decision on a [`Row`], for the binding limit. A renewal is allowed if it takes effect. Times are in microseconds after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the decision's")]
pub struct RowAnswer {
    pub allowed: bool,
    /// The maximum of the binding limit.
    pub limit: u64,
    pub used: u64,
    pub remaining: u64,
    pub retry_after: Option<u64>,
    pub refill_after: u64,
    pub reset_after: u64,
}

impl Trace {
    /// Returns the default policy.
    ///
    /// # Errors
    /// Never: the limits of the golden traces are valid.
    pub fn policy(&self) -> Result<Policy, Error> {
        Ok(self.limits.parse::<Policy>()?.with_counting(self.counting))
    }
}

impl Row {
    /// Returns the operation's policy. `None` for the default policy.
    ///
    /// # Errors
    /// Never: the limits of the golden traces are valid.
    pub fn own_policy(&self) -> Result<Option<Policy>, Error> {
        let own = Some(self.own_limits).filter(|own| !own.is_empty());
        own.map(str::parse).transpose()
    }
}

impl From<&Decision> for RowAnswer {
    fn from(decision: &Decision) -> Self {
        Self::from(&Answer::from(decision))
    }
}

impl From<&Answer> for RowAnswer {
    fn from(answer: &Answer) -> Self {
        Self::new(answer.allowed, answer.retry_after, &answer.status)
    }
}

impl RowAnswer {
    pub(crate) fn new(allowed: bool, retry_after: Option<Duration>, status: &Status) -> Self {
        let micros = |duration: Duration| duration.as_micros() as u64;
        Self {
            allowed,
            limit: status.limit().max(),
            used: status.used(),
            remaining: status.remaining(),
            retry_after: retry_after.map(micros),
            refill_after: micros(status.refill_after()),
            reset_after: micros(status.reset_after()),
        }
    }
}

/// Returns the golden traces.
#[must_use]
pub fn traces() -> &'static [Trace] {
    static TRACES: LazyLock<Vec<Trace>> =
        LazyLock::new(|| parse(include_str!("golden/traces.txt")));
    &TRACES
}

/// Parses traces that are written like the golden ones. Skips rows that it cannot parse, so count traces and rows.
#[must_use]
pub fn parse(text: &'static str) -> Vec<Trace> {
    let lines = |block: &'static str| block.lines().filter(|line| !line.starts_with('#'));
    let blocks = text.split("\n\n");
    blocks.filter_map(|block| trace(lines(block))).collect()
}

fn trace(mut lines: impl Iterator<Item = &'static str>) -> Option<Trace> {
    let mut columns = lines.next()?.split(" | ");
    let (name, limits) = (columns.next()?, columns.next()?);
    let counting = match columns.next() {
        Some("attempts") => Counting::Attempts,
        _ => Counting::Admitted,
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
    let (at, answer) = (micros(words.next()?)?, answer(columns.next()?));
    let used = columns.next().unwrap_or_default().split_whitespace();
    let used: Vec<u64> = used.filter_map(|used| used.parse().ok()).collect();
    let mut row = Row {
        at,
        mode: Mode::Acquire,
        cost: 1,
        own_limits: "",
        limiter: 0,
        id: None,
        renews: None,
        used_each: used.leak(),
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
            "id" => row.id = Some(words.next()?.parse().ok()?),
            "renew" => row.renews = Some(words.next()?.parse().ok()?),
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
    let mut words = text.split(' ');
    let verdict = words.next()?;
    let (used, limit) = words.next()?.split_once('/')?;
    let (used, limit) = (used.parse().ok()?, limit.parse::<u64>().ok()?);
    let mut time = || micros(words.next()?);
    Some(RowAnswer {
        allowed: verdict == "A",
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
