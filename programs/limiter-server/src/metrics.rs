//! The metrics recorder, and the counters that requests update.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Unit, describe_counter, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub(crate) const DURATION: &str = "limiter_server_request_duration_seconds";
pub(crate) const ERRORS: &str = "limiter_server_errors_total";
pub(crate) const REFUSED: &str = "limiter_server_refused_total";

/// How often histograms are compacted without a reader.
const UPKEEP: Duration = Duration::from_secs(5);
/// The upper bounds of the buckets of all durations, in seconds.
const BUCKETS: [f64; 12] = [
    50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 300e-3, 1.0,
];

/// The process's recorder. `None` if the program has a different one.
static INSTALLED: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Returns the process's recorder.
pub(crate) fn installed() -> Option<&'static PrometheusHandle> {
    INSTALLED.get()?.as_ref()
}

/// Installs the process's recorder, once.
pub(crate) fn install() {
    let install = || {
        let matcher = Matcher::Suffix("_seconds".to_owned());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, &BUCKETS);
        let recorder = builder.ok()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).ok()?;
        describe_histogram!(
            DURATION,
            Unit::Seconds,
            "Duration of decisions with their waits, by interface."
        );
        describe_counter!(
            ERRORS,
            Unit::Count,
            "Requests without a decision, by interface and kind."
        );
        describe_counter!(
            REFUSED,
            Unit::Count,
            "Connections and requests that a listener refused, by reason."
        );
        Some(handle)
    };
    INSTALLED.get_or_init(install);
}

/// Compacts the histograms from time to time.
pub(crate) async fn upkeep() {
    while let Some(handle) = installed() {
        tokio::time::sleep(UPKEEP).await;
        handle.run_upkeep();
    }
}
