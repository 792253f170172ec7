//! The metrics of the server.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    with_local_recorder,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::service::{Failure, Service};

const DURATION: &str = "limiter_server_request_duration_seconds";
const ERRORS: &str = "limiter_server_errors_total";
const DECISIONS: &str = "limiter_server_decisions_total";
const HITS: &str = "limiter_server_hits_total";
const DETAILED: &str = "limiter_server_detailed_decisions_total";
const UNMATCHED: &str = "limiter_server_unmatched_total";
const STORE_UP: &str = "limiter_server_store_up";
const RULES: &str = "limiter_server_rules";

/// How often histograms are compacted if nobody reads them.
const UPKEEP: Duration = Duration::from_secs(5);
/// The upper bounds of the buckets of all durations, in seconds.
const BUCKETS: [f64; 12] = [50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 300e-3, 1.0];

/// Installs the process's recorder, once. Returns `None` if the program has another one.
pub(crate) fn install() -> Option<&'static PrometheusHandle> {
    static INSTALLED: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let matcher = Matcher::Suffix("_seconds".to_owned());
        let recorder = PrometheusBuilder::new().set_buckets_for_metric(matcher, &BUCKETS).ok()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        describe_histogram!(DURATION, Unit::Seconds, "Duration of decisions, by interface.");
        describe_counter!(ERRORS, Unit::Count, "Requests without a decision, by interface and kind.");
        describe_counter!(
            UNMATCHED,
            Unit::Count,
            "Descriptors that match no rule, by domain; empty for an unknown domain."
        );
        Some(handle)
    };
    INSTALLED.get_or_init(install).as_ref()
}

/// Compacts the histograms from time to time.
pub(crate) async fn upkeep() {
    while let Some(handle) = install() {
        tokio::time::sleep(UPKEEP).await;
        handle.run_upkeep();
    }
}

/// Returns all metrics as text.
pub(crate) fn render(service: &Service) -> String {
    // The series of rules begin anew each time, so that those of removed rules end.
    let current = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&current, || record(service));
    service.store().report();
    current.handle().render() + &install().map_or_else(String::new, PrometheusHandle::render)
}

fn record(service: &Service) {
    describe_counter!(DECISIONS, Unit::Count, "Requests by rule and outcome.");
    describe_counter!(HITS, Unit::Count, "Requested units by rule, whether allowed or denied.");
    describe_counter!(DETAILED, Unit::Count, "Requests by key and outcome, for rules with detailed metrics.");
    describe_gauge!(
        STORE_UP,
        Unit::Count,
        "1 while the store responds, 0 while the outage choice decides in its place."
    );
    describe_gauge!(RULES, Unit::Count, "Rules of the current configuration.");
    let rules = service.rules();
    for rule in rules.with_overrides() {
        let hits = rule.counts.hits.load(Relaxed);
        counter!(HITS, "domain" => label(&rule.domain), "rule" => label(&rule.path)).absolute(hits);
        for (outcome, count) in rule.counts.by_outcome() {
            let (domain, rule) = (label(&rule.domain), label(&rule.path));
            counter!(DECISIONS, "domain" => domain, "rule" => rule, "outcome" => outcome).absolute(count);
        }
    }
    service.detailed().for_each(|domain, key, counts| {
        for (outcome, count) in counts.by_outcome() {
            let (domain, key) = (label(domain), label(key));
            counter!(DETAILED, "domain" => domain, "key" => key, "outcome" => outcome).absolute(count);
        }
    });
    gauge!(RULES).set(rules.iter().count() as f64);
    gauge!(STORE_UP).set(f64::from(u8::from(!service.store().is_away())));
}

/// Returns a text as a label. The exporter takes two backslashes for an escaped one, and readers may take a zero for the end.
fn label(text: &str) -> String {
    let shown = |char: char| if char.is_control() { char.escape_default().to_string() } else { char.to_string() };
    text.chars().map(shown).collect::<String>().replace('\\', r"\\")
}

/// Counts a descriptor that no rule matches.
pub(crate) fn count_unmatched(domain: &str) {
    counter!(UNMATCHED, "domain" => label(domain)).increment(1);
}

/// The durations of decisions and the failures of one interface. They are looked up once, not for each request.
#[derive(Debug)]
pub(crate) struct Interface {
    duration: Histogram,
    invalid: Counter,
    failed: Counter,
}

impl Interface {
    pub(crate) fn new(interface: &'static str) -> Self {
        let errors = |kind| counter!(ERRORS, "interface" => interface, "kind" => kind);
        let (invalid, failed) = (errors("invalid"), errors("store"));
        Self { duration: histogram!(DURATION, "interface" => interface), invalid, failed }
    }

    /// Returns the count of gRPC messages that cannot be decoded.
    pub(crate) fn undecodable() -> Counter {
        counter!(ERRORS, "interface" => "grpc", "kind" => "undecodable")
    }

    /// Runs a decision, and records how long it takes and how it fails.
    pub(crate) async fn observe<T>(&self, decision: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let began = Instant::now();
        let answer = decision.await;
        self.duration.record(began.elapsed());
        match &answer {
            Ok(_) => {}
            Err(Failure::Invalid(_)) => self.invalid.increment(1),
            Err(Failure::Store(_)) => self.failed.increment(1),
        }
        answer
    }
}
