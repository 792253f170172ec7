//! The metrics recorder, and the counters that requests update.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Unit, describe_counter, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub(crate) const DURATION: &str = "limiter_server_request_duration_seconds";
pub(crate) const ERRORS: &str = "limiter_server_errors_total";

/// How often histograms are compacted without a reader.
const UPKEEP: Duration = Duration::from_secs(5);
/// The upper bounds of the buckets of all durations, in seconds.
const BUCKETS: [f64; 12] = [
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 300e-3, 1.0,
];

/// Installs the process's recorder, once. Returns `None` if the program has another one.
pub(crate) fn install() -> Option<&'static PrometheusHandle> {
    static INSTALLED: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let matcher = Matcher::Suffix("_seconds".to_owned());
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(matcher, &BUCKETS)
            .ok()?
            .build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        describe_histogram!(
            DURATION,
            Unit::Seconds,
            "Duration of decisions, by interface."
        );
        describe_counter!(
            ERRORS,
            Unit::Count,
            "Requests without a decision, by interface and kind."
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
