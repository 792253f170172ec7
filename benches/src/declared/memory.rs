//! Decisions in memory.

use limiter_core::Limit;
use serde::Deserialize;

/// One operation. The first contestant is this library.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// `group/op`.
    pub name: String,
    /// The workload, as the table describes it.
    pub(crate) about: String,
    /// The names of contestants, or of groups of them.
    pub(crate) who: Vec<String>,
    pub(crate) workload: Workload,
    /// The workload with which the first contestant is compared.
    pub(crate) plain: Option<Workload>,
}

impl Scenario {
    /// Whether it has a contestant or a group with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.who.iter().any(|who| who == name)
    }
}

/// Operations with known answers.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    pub(crate) limits: Vec<Limit>,
    #[serde(default = "one")]
    pub(crate) keys: usize,
    #[serde(default)]
    pub(crate) order: Order,
    /// The cost of a request, with the call for any number of units. `None`: one, with the call for one unit.
    pub(crate) cost: Option<u32>,
    /// Whether all requests are denied. Otherwise all are allowed.
    #[serde(default)]
    pub(crate) denied: bool,
    /// The number of entries of each key before the measurement. Default: one, or as many as use the limit up.
    pub(crate) entries: Option<u32>,
    #[serde(default = "one")]
    pub(crate) threads: usize,
}

fn one() -> usize {
    1
}

/// The order of the keys.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Each equally often.
    #[default]
    Uniform,
    /// Each once. When the keys run out, a new limiter starts.
    Fresh,
}
