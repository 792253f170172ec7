//! The macro that makes one test per phase of the suite.

use std::sync::Arc;

use super::Suite;
use super::failure::Failure;
use super::report::{Phase, Report};
use crate::ReferenceStore;
use crate::case::Case;
use crate::conformance::caller::StoreKeys;
use crate::conformance::mismatch::Mismatch;
use crate::conformance::session::replay_in;

/// The number of threads of the runtime. More than there are CPUs, so that the system interrupts tasks at any point.
const THREADS: usize = 8;

/// Runs a future on a new tokio runtime. Calls that still block a thread afterwards go on by themselves.
///
/// # Panics
/// If there is no thread for the runtime.
#[allow(clippy::expect_used, reason = "as `tokio::test`")]
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(THREADS).enable_all().build();
    let runtime = runtime.expect("there are threads for a runtime");
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    output
}

/// Returns the number of calls that a replay of a case makes. It leaves out settlements without a receipt.
///
/// # Errors
/// Returns the reference store's mismatch with itself.
pub fn calls_of(case: &Case) -> Result<u64, Mismatch> {
    let store_keys = StoreKeys::of(case, |key| vec![key]);
    block_on(replay_in(Arc::new(ReferenceStore::new()), store_keys, case))
}

/// Runs one phase, and fails the test with the phase's mismatches.
///
/// # Panics
/// If the store fails.
#[allow(clippy::panic, reason = "it is the body of a test")]
pub fn check(suite: Suite, phase: Phase, run: impl AsyncFnOnce(Suite) -> Result<Report, Failure>) {
    if let Err(failure) = block_on(run(suite.phases(&[phase]))) {
        panic!("{failure}");
    }
}

/// Generates a module of tests, one for each phase of the conformance suite: `my_store::golden`, `my_store::cases` and so on.
///
/// Takes the name of the module, a [`Suite`](crate::conformance::Suite), and an async closure that makes a store and runs the suite
/// on it. Each test evaluates the suite anew, selects its [`Phase`](crate::conformance::Phase), and calls the closure.
///
/// ```no_run
/// use std::sync::Arc;
/// use limiter_testkit::ReferenceStore as MyStore;
/// use limiter_testkit::conformance::Suite;
/// use limiter_testkit::conformance_tests;
///
/// conformance_tests!(my_store, Suite::slow(), async |suite| suite.run(Arc::new(MyStore::new())).await);
/// ```
///
/// Each test runs on a multi-threaded tokio runtime. With `handles` at the end, there is also a test `handles`, for a closure that passes several handles to
/// the suite; the crate's README has an example.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, $suite:expr, $run:expr $(, $handles:ident)? $(,)?) => {
        #[cfg(test)]
        mod $name {
            // Next to the tests, the suite's and the closure's names could mean a test.
            mod __scope {
                #[allow(unused_imports)]
                use super::super::*;

                pub(super) fn __conformance_phase(phase: $crate::conformance::Phase) {
                    $crate::conformance::__private::check($suite, phase, $run);
                }
            }

            $crate::__conformance_tests! {
                golden Golden, cases Cases, long_log LongLog, store_clock StoreClock, forgetting Forgetting, cancel Cancel,
                random Random, contention Contention, several Several, $($handles Handles,)?
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($($test:ident $phase:ident,)+) => {
        $(
            #[test]
            fn $test() {
                __scope::__conformance_phase($crate::conformance::Phase::$phase);
            }
        )+
    };
}
