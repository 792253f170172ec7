//! Requests through axum.

use limiter_core::Limit;
use serde::Deserialize;

/// Requests of a number of addresses in turns.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) limit: Limit,
    pub(crate) addresses: u32,
    #[serde(default)]
    pub(crate) denied: bool,
}
