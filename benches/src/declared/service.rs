//! Requests to the server.

use serde::Deserialize;

/// Requests in flight.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) in_flight: usize,
    #[serde(default = "one")]
    pub(crate) rules: usize,
    #[serde(default = "one")]
    pub(crate) descriptors: usize,
    /// Whether the store is a Redis that is down.
    #[serde(default)]
    pub(crate) away: bool,
}

fn one() -> usize {
    1
}
