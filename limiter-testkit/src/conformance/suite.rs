//! The suite: its settings, phases and reports.

pub(super) mod failure;
pub mod macros;
pub(super) mod report;
pub(super) mod run;
pub(super) mod sizes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use limiter_core::store::LogKey;
use limiter_core::{BoxFuture, SharedStore, WindowStore};

use super::caller::salt;
use super::mismatch::Mismatch;
use super::sentence::Sentence::C2;
use super::session::Sweep;
use super::spawn::{Spawner, Task};
use super::watched::{Watch, watched};
use super::{
    cancel, cases, contention, forgetting, generated, golden, handles, long_log, several,
    store_clock,
};
use failure::Failure;
use report::{Phase, Report};
use run::Run;
use sizes::Sizes;

/// A function that makes a log unreadable.
pub(super) type Damage = Arc<dyn Fn(LogKey<'_>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Checks a store against the contract; see the [module](super).
///
/// Three presets fit most stores:
///
/// | preset | for |
/// |---|---|
/// | [`new`](Self::new) | stores in memory; takes seconds |
/// | [`slow`](Self::slow) | stores that take about a millisecond a call; takes less than a minute |
/// | [`shared`](Self::shared) | live servers that others use; little load, no large keys |
#[derive(Clone)]
#[must_use = "a suite does nothing until it runs"]
pub struct Suite {
    phases: Option<Vec<Phase>>,
    pub(super) seed: u64,
    pub(super) sizes: Sizes,
    /// How far the store's clock may be from the system clock. `None` if its epoch differs.
    pub(super) tolerance: Option<Duration>,
    /// Makes the store sweep.
    pub(super) sweep: Option<Sweep>,
    /// Makes a log unreadable.
    pub(super) damage: Option<Damage>,
    pub(super) spawner: Spawner,
}

impl Suite {
    fn with_sizes(sizes: Sizes, tolerance: Duration) -> Self {
        let (seed, spawner) = (salt() as u64, Spawner::threads());
        Self {
            phases: None,
            seed,
            sizes,
            tolerance: Some(tolerance),
            sweep: None,
            damage: None,
            spawner,
        }
    }

    /// Returns the whole suite, for a store in memory.
    pub fn new() -> Self {
        Self::with_sizes(Sizes::FAST, Duration::from_secs(1))
    }

    /// Returns a suite for a store that takes about a millisecond a call: a local database, or a server on this machine.
    pub fn slow() -> Self {
        Self::with_sizes(Sizes::SLOW, Duration::from_secs(1))
    }

    /// Returns a suite for a live server that others also use. It makes few calls and uses no large keys. The
    /// server's clock may differ from this machine's by up to a minute.
    pub fn shared() -> Self {
        Self::with_sizes(Sizes::SHARED, Duration::from_secs(60))
    }

    /// Runs only these phases. Default: all, except [`Phase::Handles`] with a single handle.
    pub fn phases(mut self, phases: &[Phase]) -> Self {
        self.phases = Some(phases.to_vec());
        self
    }

    /// Sets the seed of the random sequences. A [`Failure`] prints the seed that found it. Default: random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Changes how much the phases do: `sizes(|sizes| sizes.sequences = 2_000)`.
    pub fn sizes(mut self, change: impl FnOnce(&mut Sizes)) -> Self {
        change(&mut self.sizes);
        self
    }

    /// Accepts a store clock with a different epoch, as sentence T4 allows. The suite then checks only its progress.
    pub fn own_epoch(mut self) -> Self {
        self.tolerance = None;
        self
    }

    /// Sets a function that makes the store remove every log that it may forget, and returns a future that ends afterwards. The
    /// suite calls it between other calls.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use limiter_testkit::ReferenceStore;
    /// # use limiter_testkit::conformance::Suite;
    /// # trait Sweeps { fn sweep(&self) {} }
    /// # impl Sweeps for ReferenceStore {}
    /// let store = Arc::new(ReferenceStore::new());
    /// let sweeper = Arc::clone(&store);
    /// let suite = Suite::new().sweep(move || {
    ///     sweeper.sweep();
    ///     Box::pin(async {})
    /// });
    /// # drop(suite);
    /// ```
    pub fn sweep(
        mut self,
        sweep: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.sweep = Some(Arc::new(sweep));
        self
    }

    /// Sets a function that replaces a log by something that the store cannot read, and returns a future that ends afterwards. The
    /// suite then checks that calls with this log fail and change no other log. [`Phase::Several`] uses it.
    pub fn damage(
        mut self,
        damage: impl Fn(LogKey<'_>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.damage = Some(Arc::new(damage));
        self
    }

    /// Sets how to start a task: `spawn` starts it and returns a future that ends when the task ends. Default: one
    /// thread per task. A store that needs its runtime starts tasks there:
    ///
    /// ```
    /// # use limiter_testkit::conformance::Suite;
    /// # let suite =
    /// Suite::new().spawn(|task| Box::pin(async { _ = tokio::spawn(task).await }))
    /// # ;
    /// ```
    pub fn spawn(mut self, spawn: impl Fn(Task) -> Task + Send + Sync + 'static) -> Self {
        self.spawner = Spawner::new(spawn);
        self
    }

    /// Runs the suite on a store.
    ///
    /// Every key starts with a random prefix, or is empty and has a random name, so the store may be live and shared. The suite
    /// removes every log at the end, unless the store fails.
    ///
    /// # Errors
    /// Returns the [`Failure`] of the first phase that fails, with all its failing cases. A phase with nothing to run also
    /// fails, and so does a call that takes longer than [`Sizes::call`].
    pub async fn run<S: WindowStore + ?Sized>(&self, store: Arc<S>) -> Result<Report, Failure> {
        self.run_all(vec![store], None).await
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
        self.run_all(handles, Some(Box::pin(open))).await
    }

    async fn run_all<S: WindowStore + ?Sized>(
        &self,
        handles: Vec<Arc<S>>,
        late: Option<BoxFuture<'_, SharedStore>>,
    ) -> Result<Report, Failure> {
        let watch = Watch::new(self.sizes.call);
        let handles: Vec<SharedStore> = handles
            .into_iter()
            .map(|handle| watched(Arc::new(handle), &watch))
            .collect();
        let late = late.map(|late| -> BoxFuture<'_, SharedStore> {
            let watch = Arc::clone(&watch);
            Box::pin(async move { watched(late.await, &watch) })
        });
        let mut phases = self.phases.clone().unwrap_or(Phase::ALL.to_vec());
        phases
            .retain(|phase| self.phases.is_some() || handles.len() > 1 || *phase != Phase::Handles);
        let mut run = Run::new(self, late);
        for phase in phases {
            run.handles.clone_from(&handles);
            if phase != Phase::Handles {
                run.handles.truncate(1);
            }
            run_phase(&mut run, phase).await;
            if let Some(text) = watch.hung() {
                run.mismatches = vec![Mismatch::new("a call that does not return", &[C2], text)];
            }
            if !run.mismatches.is_empty() {
                return Err(Failure::new(phase, run.mismatches, self.seed));
            }
        }
        Ok(run.report)
    }

    /// Like [`run`](Self::run), for a store that needs no runtime.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<S: WindowStore + ?Sized>(&self, store: Arc<S>) -> Result<Report, Failure> {
        block_on(self.run(store))
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phases, sizes) = (&self.phases, &self.sizes);
        let mut out = f.debug_struct("Suite");
        out.field("phases", phases)
            .field("sizes", sizes)
            .finish_non_exhaustive()
    }
}

/// Runs one phase.
async fn run_phase(run: &mut Run<'_>, phase: Phase) {
    run.phase = phase;
    if run.handles.is_empty() {
        let text = "the list of handles is empty";
        return run.fail(Mismatch::new("no store", &[], text));
    }
    match phase {
        Phase::Golden => golden::run(run).await,
        Phase::Cases => cases::run(run).await,
        Phase::LongLog => long_log::run(run).await,
        Phase::StoreClock => store_clock::run(run).await,
        Phase::Forgetting => forgetting::run(run).await,
        Phase::Cancel => cancel::run(run).await,
        Phase::Handles => handles::run(run).await,
        Phase::Exhaustive => generated::exhaustive(run).await,
        Phase::Random => generated::random(run).await,
        Phase::Contention => contention::run(run).await,
        Phase::Several => several::run(run).await,
    }
    if run.mismatches.is_empty() && run.report.calls_of(phase) == 0 {
        let text = match phase {
            Phase::Handles => "there is only one handle: pass several to `Suite::run_handles`",
            _ => "nothing to run",
        };
        run.fail(Mismatch::new("nothing was checked", &[], text));
    }
}
