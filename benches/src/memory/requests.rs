//! The requests of a workload.

use std::sync::Arc;

use limiter_core::Policy;

use crate::declared::memory::{Order, Workload};

/// A workload, its keys and its requests in memory.
#[derive(Clone)]
pub struct Requests {
    pub(crate) workload: Workload,
    pub(super) keys: Arc<Vec<String>>,
    /// The keys in their order, repeated as often as needed. Their number is a power of two. They lie in memory in this order,
    /// so each key is in the cache, as after reading a request from a socket.
    pub(super) order: Arc<Vec<String>>,
}

impl Requests {
    pub(crate) fn new(workload: Workload) -> Self {
        let own = keys(workload.keys);
        let order = match workload.order {
            _ if own.len() == 1 => own.clone(),
            Order::Fresh => keys(own.len().next_power_of_two()),
            Order::Uniform => picks(own.len()).map(|pick| own[pick].clone()).collect(),
        };
        Self { workload, keys: Arc::new(own), order: Arc::new(order) }
    }

    pub(super) fn policy(&self) -> Policy {
        Policy::new(self.workload.limits.iter().copied()).expect("the limits are valid")
    }
}

/// Returns keys of 16 bytes.
pub(crate) fn keys(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("user:{i:011}")).collect()
}

/// Picks keys by their numbers, each equally often.
fn picks(keys: usize) -> impl Iterator<Item = usize> {
    // A fixed seed, so every run picks the same keys.
    let mut random = fastrand::Rng::with_seed(0x2545_f491_4f6c_dd1d);
    let count = if keys <= 1024 { 1 << 16 } else { (2 * keys).next_power_of_two().max(1 << 20) };
    (0..count).map(move |_| random.usize(..keys))
}
