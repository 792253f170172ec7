//! The durations and failures of one interface.

use std::time::Instant;

use metrics::{Counter, Histogram, counter, histogram};

use crate::metrics::{DURATION, ERRORS};
use crate::service::Failure;

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
        let invalid = errors("invalid");
        let failed = errors("store");
        Self {
            duration: histogram!(DURATION, "interface" => interface),
            invalid,
            failed,
        }
    }

    /// Returns the count of gRPC messages that cannot be decoded.
    pub(crate) fn undecodable() -> Counter {
        counter!(ERRORS, "interface" => "grpc", "kind" => "undecodable")
    }

    /// Runs a decision, and records how long it takes and how it fails.
    pub(crate) async fn observe<T>(
        &self,
        decision: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
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
