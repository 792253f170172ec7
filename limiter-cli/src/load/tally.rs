//! Counts and latencies of the decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::admissions::Admission;

/// Counts of decisions and errors, and the latencies of all calls.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// The number of errors by the name of their kind.
    pub(super) errors: BTreeMap<&'static str, u64>,
    /// Admitted acquires that have not been taken out.
    pub(super) admissions: Vec<Admission>,
    /// In microseconds.
    latencies: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Self {
        // Three significant digits, no maximum.
        let latencies = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are valid"));
        Self { allowed: 0, denied: 0, errors: BTreeMap::new(), admissions: Vec::new(), latencies }
    }

    pub(super) fn decided(&mut self, allowed: bool, latency: Duration) {
        *(if allowed { &mut self.allowed } else { &mut self.denied }) += 1;
        self.record(latency);
    }

    pub(super) fn failed(&mut self, kind: &'static str, latency: Duration) {
        *self.errors.entry(kind).or_default() += 1;
        self.record(latency);
    }

    fn record(&mut self, latency: Duration) {
        // The histogram grows as it must; it has no maximum that a latency could exceed.
        let _ = self.latencies.record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.admissions.extend(other.admissions);
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        // Adding fails only if the histograms differ in precision or range.
        let _ = self.latencies.add(&other.latencies);
    }

    /// Returns the latency in microseconds that this share of all calls did not exceed.
    pub(super) fn latency(&self, share: f64) -> u64 {
        self.latencies.value_at_quantile(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_latencies_are_kept_and_added() {
        let mut total = Tally::new();
        for micros in [1, 500_000, 90_000_000] {
            let mut tally = Tally::new();
            tally.decided(true, Duration::from_micros(micros));
            total.add(tally);
        }
        let near = |share: f64, micros: f64| (total.latency(share) as f64 / micros - 1.0).abs() < 0.002;
        assert!(near(1.0, 90e6) && near(0.6, 500e3), "{total:?}");
        assert_eq!(total.allowed, 3);
    }
}
