//! The conformance suite. It checks a store against the contract of [`WindowStore`].
//!
//! Each phase is a module with a `run` function. [`Suite`] contains the settings and runs the phases. It needs a tokio runtime with a
//! timer.

mod call;
mod caller;
mod cancel;
mod cases;
mod contention;
mod forgetting;
mod golden;
mod handles;
mod long_log;
mod mismatch;
mod model;
mod random;
mod result;
mod session;
mod several;
mod store_clock;
mod suite;
mod tasks;
mod watched;

use std::sync::{Arc, OnceLock};

use limiter_core::{BoxFuture, SharedStore, WindowStore};

pub use crate::case::{Case, CaseId, CaseLimiter, Joint, Place, Step, Verb};
pub use crate::sentence::Sentence;
pub use mismatch::Mismatch;
pub use session::replay;
pub use suite::Suite;
pub use suite::failure::Failure;
pub use suite::report::{Phase, Report};
pub use suite::sizes::Sizes;

#[doc(hidden)]
pub use suite::macros as __private;

use suite::run::Run;
use watched::Watched;

use crate::script;
use crate::sentence::Sentence::C2;

/// Checks a phase.
type Check = for<'r, 'a> fn(&'r mut Run<'a>) -> BoxFuture<'r, ()>;

/// All phases, in the order in which they run. The golden traces run last: a failure of any other phase is more specific.
const PHASES: [(Phase, Check); 10] = [
    (Phase::Cases, |run| Box::pin(cases::run(run))),
    (Phase::LongLog, |run| Box::pin(long_log::run(run))),
    (Phase::StoreClock, |run| Box::pin(store_clock::run(run))),
    (Phase::Forgetting, |run| Box::pin(forgetting::run(run))),
    (Phase::Handles, |run| Box::pin(handles::run(run))),
    (Phase::Random, |run| Box::pin(random::run(run))),
    (Phase::Contention, |run| {
        Box::pin(contention::run(run, script::TOGETHER))
    }),
    (Phase::Several, |run| Box::pin(several::run(run))),
    (Phase::Cancel, |run| Box::pin(cancel::run(run))),
    (Phase::Golden, |run| Box::pin(golden::run(run))),
];

impl Suite {
    /// Runs the suite on a store, in a tokio runtime.
    ///
    /// Every key starts with a random prefix, or is empty and has a random name, so the store may be live and shared. The suite
    /// removes every log at the end, unless the store fails.
    ///
    /// # Errors
    /// Returns the [`Failure`] of the first phase that fails, with all its failing cases. A phase with nothing to run also
    /// fails, and so does a call that takes longer than [`Sizes::call`].
    pub async fn run<S: WindowStore + ?Sized>(&self, store: Arc<S>) -> Result<Report, Failure> {
        self.run_all(vec![Arc::new(store)], None).await
    }

    /// Runs the suite on several handles of one store, for example several connections to a server or several openings of a
    /// file, and on one more that `open` opens after others have written. It must find what they wrote.
    /// [`Phase::Handles`] uses all of them, in turn and concurrently. Other phases use the first.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_handles<S: WindowStore + ?Sized>(
        &self,
        handles: Vec<Arc<S>>,
        open: impl Future<Output = Arc<S>> + Send,
    ) -> Result<Report, Failure> {
        let open = async { Arc::new(open.await) as SharedStore };
        let handles = handles.into_iter().map(|handle| Arc::new(handle) as _);
        self.run_all(handles.collect(), Some(Box::pin(open))).await
    }

    /// Boxed here: a crate that awaits the future of an `async fn` compiles the suite once more.
    fn run_all<'a>(
        &'a self,
        handles: Vec<SharedStore>,
        late: Option<BoxFuture<'a, SharedStore>>,
    ) -> BoxFuture<'a, Result<Report, Failure>> {
        Box::pin(self.run_phases(handles, late))
    }

    async fn run_phases(
        &self,
        handles: Vec<SharedStore>,
        late: Option<BoxFuture<'_, SharedStore>>,
    ) -> Result<Report, Failure> {
        let hung = Arc::new(OnceLock::new());
        let watched = |store: SharedStore| -> SharedStore {
            Arc::new(Watched {
                store,
                most: self.sizes.call,
                hung: Arc::clone(&hung),
            })
        };
        let handles: Vec<SharedStore> = handles.into_iter().map(watched).collect();
        let late = late
            .map(|late| -> BoxFuture<'_, SharedStore> { Box::pin(async { watched(late.await) }) });
        let mut run = Run::new(self, late);
        for (phase, check) in PHASES {
            let is_wanted = match &self.phases {
                Some(phases) => phases.contains(&phase),
                None => phase != Phase::Handles || handles.len() > 1,
            };
            if !is_wanted {
                continue;
            }
            run.start(phase, &handles);
            if handles.is_empty() {
                let text = "the list of handles is empty";
                run.fail(Mismatch::new("no store", &[], text));
            } else {
                check(&mut run).await;
                run.has_checked();
            }
            if let Some(text) = hung.get() {
                run.mismatches = vec![Mismatch::new("a call that does not return", &[C2], text)];
            }
            if !run.mismatches.is_empty() {
                return Err(Failure::new(phase, run.mismatches, self.seed));
            }
        }
        Ok(run.report)
    }

    /// Like [`run`](Self::run), with a tokio runtime that it starts.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<S: WindowStore + ?Sized>(&self, store: Arc<S>) -> Result<Report, Failure> {
        suite::macros::block_on(self.run(store))
    }
}
