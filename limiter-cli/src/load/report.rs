//! The output of `load`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use limiter_core::Policy;
use serde::Serialize;

use super::admissions::WorstWindow;
use super::tally::Tally;
use crate::text;

/// The figures, in the order of the JSON.
#[derive(Debug, Serialize)]
pub(super) struct Figures<'a> {
    /// The second, for an interim line.
    #[serde(skip_serializing_if = "Option::is_none")]
    second: Option<u64>,
    allowed: u64,
    denied: u64,
    errors: &'a BTreeMap<&'static str, u64>,
    decisions_per_s: f64,
    p50_us: u64,
    p99_us: u64,
    p999_us: u64,
    max_us: u64,
    /// The most units that any window of any key admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    worst_window: Option<u64>,
}

impl<'a> Figures<'a> {
    /// Returns the figures of the whole load.
    pub(super) fn whole(tally: &'a Tally, elapsed: Duration, worst: WorstWindow) -> Self {
        Self { second: None, worst_window: Some(worst.units), ..Self::of(tally, elapsed) }
    }

    /// Returns the figures of one second.
    pub(super) fn second(tally: &'a Tally, second: u64) -> Self {
        Self { second: Some(second), ..Self::of(tally, Duration::from_secs(1)) }
    }

    fn of(tally: &'a Tally, elapsed: Duration) -> Self {
        let rate = (tally.allowed + tally.denied) as f64 / elapsed.as_secs_f64().max(1e-9);
        Self {
            second: None,
            allowed: tally.allowed,
            denied: tally.denied,
            errors: &tally.errors,
            decisions_per_s: (rate * 10.0).round() / 10.0,
            p50_us: tally.latency(0.5),
            p99_us: tally.latency(0.99),
            p999_us: tally.latency(0.999),
            max_us: tally.latency(1.0),
            worst_window: None,
        }
    }

    pub(super) fn write_table(&self, out: &mut impl Write, policy: &Policy, worst: WorstWindow) -> io::Result<()> {
        writeln!(out, "limit         {policy}")?;
        writeln!(out, "allowed       {:>14}", text::grouped(self.allowed))?;
        writeln!(out, "denied        {:>14}", text::grouped(self.denied))?;
        writeln!(out, "errors        {:>14}", text::grouped(self.errors.values().sum()))?;
        for (kind, count) in self.errors {
            writeln!(out, "  {kind:<12}{:>14}", text::grouped(*count))?;
        }
        writeln!(out, "decisions/s   {:>14}", text::grouped(self.decisions_per_s as u64))?;
        let latencies = [("p50", self.p50_us), ("p99", self.p99_us), ("p99.9", self.p999_us), ("max", self.max_us)];
        for (name, micros) in latencies {
            writeln!(out, "latency {name:<6}{:>14}", text::duration(micros))?;
        }
        let WorstWindow { units, limit } = worst;
        let verdict = if units <= limit.max() { "within the limit" } else { "OVER THE LIMIT" };
        writeln!(out, "worst window  {:>14}  of {limit}: {verdict}", text::grouped(units))
    }
}
