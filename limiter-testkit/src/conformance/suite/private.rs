//! What the macro `conformance_tests` expands to.

use std::sync::Arc;

use limiter_core::WindowStore;

use super::{Phase, Suite};

pub use futures::executor::block_on;

/// Runs one phase, and fails the test with what it finds.
///
/// # Panics
/// If the store fails.
#[allow(clippy::panic, reason = "it is the body of a test")]
pub async fn check<S: WindowStore + ?Sized>(suite: Suite, phase: Phase, handles: Vec<Arc<S>>) {
    if let Err(failure) = suite.phases(&[phase]).run_handles(handles).await {
        panic!("{failure}");
    }
}

/// Adds a sweep of this store to a suite.
pub fn with_sweep<S: WindowStore>(suite: Suite, store: &Arc<S>, sweep: impl Fn(&S) + Send + Sync + 'static) -> Suite {
    let store = Arc::clone(store);
    suite.sweep(move || sweep(&store))
}
