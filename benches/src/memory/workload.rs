//! Scenarios and their requests in memory.

use std::sync::{Arc, LazyLock};

use limiter_core::{Limit, Policy};
use serde::Deserialize;

use crate::declared::{Declared, parse};

/// The scenarios of one operation, and the goals.
pub static MEMORY: LazyLock<Declared<Scenario>> =
    LazyLock::new(|| parse(include_str!("../../scenarios/memory.json")));

/// One operation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// `group/op`.
    pub name: String,
    /// The workload, as the table describes it.
    pub about: String,
    /// The names of the contestants. Default: all.
    pub(super) who: Option<Vec<String>>,
    pub(super) workload: Workload,
}

/// Operations with known answers, on keys at random, each equally often.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    pub(super) limits: Vec<Limit>,
    #[serde(default = "one")]
    pub(super) keys: usize,
    /// The cost of a request, with the call for any number of units. `None`: one, with the call for one unit.
    pub(super) cost: Option<u32>,
    /// Whether all requests are denied. Otherwise all are allowed.
    #[serde(default)]
    pub(super) denied: bool,
    /// The number of entries of each key before the measurement. Default: one, or as many as use the limit up.
    pub(super) entries: Option<u32>,
    #[serde(default = "one")]
    pub(super) threads: usize,
}

fn one() -> usize {
    1
}

/// A workload, its keys and its requests in memory.
#[derive(Clone)]
pub struct Requests {
    pub(super) workload: Workload,
    pub(super) keys: Arc<Vec<String>>,
    /// The keys in their order, repeated as often as needed. Their number is a power of two. They lie in memory in this order,
    /// so each key is in the cache, as after reading a request from a socket.
    pub(super) order: Arc<Vec<String>>,
}

impl Requests {
    pub(super) fn new(workload: Workload) -> Self {
        let keys = keys(workload.keys);
        let count = match keys.len() {
            1 => 1,
            2..=1024 => 1 << 16,
            many => (2 * many).next_power_of_two().max(1 << 20),
        };
        // A fixed seed, so every run picks the same keys.
        let mut random = fastrand::Rng::with_seed(0x2545_f491_4f6c_dd1d);
        let order = (0..count)
            .map(|_| keys[random.usize(..keys.len())].clone())
            .collect();
        Self {
            workload,
            keys: Arc::new(keys),
            order: Arc::new(order),
        }
    }

    pub(super) fn policy(&self) -> Policy {
        Policy::new(self.workload.limits.iter().copied()).expect("the limits are valid")
    }
}

/// Returns keys of 16 bytes.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("user:{i:011}")).collect()
}
