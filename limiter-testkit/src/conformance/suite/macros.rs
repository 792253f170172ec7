//! The macro that makes one test per phase of the suite.

use std::sync::Arc;

use limiter_core::WindowStore;

use super::Suite;
use super::report::Phase;

#[doc(hidden)]
pub use futures::executor::block_on;

/// Runs one phase on these handles, and on one that is opened late. Fails the test with the phase's findings.
///
/// # Panics
/// If the store fails.
#[allow(clippy::panic, reason = "it is the body of a test")]
pub async fn check<S: WindowStore + ?Sized>(
    suite: Suite,
    phase: Phase,
    handles: Vec<Arc<S>>,
    open: impl Future<Output = Arc<S>> + Send,
) {
    if let Err(failure) = suite.phases(&[phase]).run_opening(handles, open).await {
        panic!("{failure}");
    }
}

/// Adds a sweep of this store to a suite.
pub fn with_sweep<S: WindowStore>(suite: Suite, store: &Arc<S>, sweep: impl Fn(&S) + Send + Sync + 'static) -> Suite {
    let store = Arc::clone(store);
    suite.sweep(move || sweep(&store))
}

/// Generates a module of tests, one for each phase of the conformance suite.
///
/// ```no_run
/// use limiter_testkit::ReferenceStore as MyStore;
/// limiter_testkit::conformance_tests!(my_store, MyStore::new());
/// ```
///
/// makes `my_store::golden`, `my_store::cases` and so on, one test for each [`Phase`](crate::conformance::Phase).
/// Each test evaluates the expression for a new store. These options may follow, in this order:
///
/// | option | effect |
/// |---|---|
/// | `with name = expression` | evaluates the expression first and holds its value, for example a server, until the test ends |
/// | `suite = expression` | the [`Suite`](crate::conformance::Suite) to run. Default: `Suite::new()` |
/// | `handles = number` | evaluates the store's expression this many times, once per handle, and adds the test `handles`, which opens one more |
/// | `sweep = function` | makes the store sweep: a function of `&MyStore` |
/// | `runtime = tokio` | runs each test, and the suite's tasks, on a multi-threaded tokio runtime. The expressions may `.await` |
///
/// ```no_run
/// # use limiter_testkit::ReferenceStore;
/// # struct Server;
/// # impl Server { fn start() -> Self { Self } fn url(&self) -> &str { "" } }
/// # struct MyStore;
/// # impl MyStore { async fn connect(_: &str) -> ReferenceStore { ReferenceStore::new() } }
/// # trait Sweeps { fn sweep(&self) {} }
/// # impl Sweeps for ReferenceStore {}
/// use limiter_testkit::conformance::Suite;
///
/// limiter_testkit::conformance_tests!(
///     my_store,
///     MyStore::connect(server.url()).await,
///     with server = Server::start(),
///     suite = Suite::slow(),
///     handles = 2,
///     sweep = |store: &ReferenceStore| store.sweep(),
///     runtime = tokio,
/// );
/// ```
#[macro_export]
macro_rules! conformance_tests {
    (
        $name:ident, $store:expr
        $(, with $guard:ident = $setup:expr)?
        $(, suite = $suite:expr)?
        $(, handles = $handles:expr)?
        $(, sweep = $sweep:expr)?
        $(, runtime = $runtime:ident)?
        $(,)?
    ) => {
        mod $name {
            #[allow(unused_imports, reason = "the expressions may need none")]
            use super::*;

            #[cfg(test)]
            async fn check(
                phase: $crate::conformance::Phase,
                on_runtime: fn($crate::conformance::Suite) -> $crate::conformance::Suite,
            ) {
                $(let $guard = $setup;)?
                let count: usize = $crate::__conformance_default!(1 $(, $handles)?);
                let mut handles = ::std::vec::Vec::new();
                for _ in 0..count {
                    handles.push(::std::sync::Arc::new($store));
                }
                let suite = $crate::__conformance_default!($crate::conformance::Suite::new() $(, $suite)?);
                $(let suite = $crate::conformance::__private::with_sweep(suite, &handles[0], $sweep);)?
                let open = async { ::std::sync::Arc::new($store) };
                $crate::conformance::__private::check(on_runtime(suite), phase, handles, open).await;
            }

            $crate::__conformance_tests! { [$($handles)?] [$($runtime)?] }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_default {
    ($default:expr) => {
        $default
    };
    ($default:expr, $given:expr) => {
        $given
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ([$handles:expr] $runtime:tt) => {
        $crate::__conformance_tests! { [] $runtime }
        $crate::__conformance_test! { handles Handles $runtime }
    };
    ([] $runtime:tt) => {
        $crate::__conformance_test! { golden Golden $runtime }
        $crate::__conformance_test! { cases Cases $runtime }
        $crate::__conformance_test! { long_log LongLog $runtime }
        $crate::__conformance_test! { store_clock StoreClock $runtime }
        $crate::__conformance_test! { forgetting Forgetting $runtime }
        $crate::__conformance_test! { cancel Cancel $runtime }
        $crate::__conformance_test! { exhaustive Exhaustive $runtime }
        $crate::__conformance_test! { random Random $runtime }
        $crate::__conformance_test! { guarantee Guarantee $runtime }
        $crate::__conformance_test! { contention Contention $runtime }
        $crate::__conformance_test! { several Several $runtime }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test {
    ($test:ident $phase:ident []) => {
        #[test]
        fn $test() {
            $crate::conformance::__private::block_on(check($crate::conformance::Phase::$phase, |suite| suite));
        }
    };
    ($test:ident $phase:ident [tokio]) => {
        #[::tokio::test(flavor = "multi_thread")]
        async fn $test() {
            let on_tokio = |suite: $crate::conformance::Suite| {
                suite.spawn(|task| ::std::boxed::Box::pin(async { _ = ::tokio::spawn(task).await }))
            };
            check($crate::conformance::Phase::$phase, on_tokio).await;
        }
    };
}
