//! The macro that makes one test per phase of the suite.

use super::Suite;
use super::failure::Failure;
use super::report::{Phase, Report};

#[doc(hidden)]
pub use futures::executor::block_on;

/// Runs one phase, and fails the test with the phase's mismatches.
///
/// # Panics
/// If the store fails.
#[allow(clippy::panic, reason = "it is the body of a test")]
pub async fn check(
    suite: Suite,
    phase: Phase,
    run: impl AsyncFnOnce(Suite) -> Result<Report, Failure>,
) {
    if let Err(failure) = run(suite.phases(&[phase])).await {
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
/// With `tokio` after the name, each test and each task of the suite runs on a multi-threaded tokio runtime. With `handles` at the
/// end, there is also a test `handles`, for a closure that passes several handles to the suite:
///
/// ```no_run
/// # use std::sync::Arc;
/// # use limiter_testkit::ReferenceStore;
/// # use limiter_testkit::conformance::{Failure, Report, Suite};
/// # use limiter_testkit::conformance_tests;
/// # struct Server;
/// # impl Server { fn start() -> Self { Self } }
/// # async fn connect(_: &Server) -> Arc<ReferenceStore> { Arc::default() }
/// async fn on_a_server(suite: Suite) -> Result<Report, Failure> {
///     let server = Server::start();
///     let handles = vec![connect(&server).await, connect(&server).await];
///     suite.run_handles(handles, connect(&server)).await
/// }
///
/// conformance_tests!(my_store, tokio, Suite::slow(), on_a_server, handles);
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, tokio, $suite:expr, $run:expr $(, $handles:ident)? $(,)?) => {
        $crate::__conformance_tests! { $name [$($handles)?] |phase| {
            let suite = $suite.spawn(|task| ::std::boxed::Box::pin(async { _ = ::tokio::spawn(task).await }));
            let check = $crate::conformance::__private::check(suite, phase, $run);
            ::tokio::runtime::Runtime::new().unwrap().block_on(check);
        } }
    };
    ($name:ident, $suite:expr, $run:expr $(, $handles:ident)? $(,)?) => {
        $crate::__conformance_tests! { $name [$($handles)?] |phase| {
            $crate::conformance::__private::block_on($crate::conformance::__private::check($suite, phase, $run));
        } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($name:ident [$($handles:ident)?] |$phase:ident| $body:block) => {
        #[cfg(test)]
        mod $name {
            // Next to the tests, the suite's and the closure's names could mean a test.
            mod __scope {
                #[allow(unused_imports)]
                use super::super::*;

                pub(super) fn __conformance_phase($phase: $crate::conformance::Phase) $body
            }

            $crate::__conformance_tests! {
                golden Golden, cases Cases, long_log LongLog, store_clock StoreClock, forgetting Forgetting, cancel Cancel,
                exhaustive Exhaustive, random Random, contention Contention, several Several, $($handles Handles,)?
            }
        }
    };
    ($($test:ident $phase:ident,)+) => {
        $(
            #[test]
            fn $test() {
                __scope::__conformance_phase($crate::conformance::Phase::$phase);
            }
        )+
    };
}
