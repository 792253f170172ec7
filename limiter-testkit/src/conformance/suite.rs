//! The suite: its settings and its reports.

pub(super) mod failure;
pub mod macros;
pub(super) mod report;
pub(super) mod run;
pub(super) mod sizes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::store::LogKey;
use limiter_core::{BoxFuture, SharedStore, WindowStore};

use super::caller::salt;
use report::Phase;
use sizes::Sizes;

/// A function that makes a log unreadable.
pub(super) type Damage = Arc<dyn Fn(LogKey<'_>) -> BoxFuture<'static, ()> + Send + Sync>;

/// A function that makes the store sweep.
pub(crate) type Sweep = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

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
    pub(super) phases: Option<Vec<Phase>>,
    pub(super) seed: u64,
    pub(super) sizes: Sizes,
    /// How far the store's clock may be from the system clock. `None` if its epoch differs.
    pub(super) tolerance: Option<Duration>,
    /// Makes the store sweep.
    pub(super) sweep: Option<Sweep>,
    /// Makes a log unreadable.
    pub(super) damage: Option<Damage>,
    /// Another store of the same kind.
    pub(super) beside: Option<SharedStore>,
}

impl Suite {
    fn with_sizes(sizes: Sizes, tolerance: Duration) -> Self {
        Self {
            phases: None,
            seed: salt() as u64,
            sizes,
            tolerance: Some(tolerance),
            sweep: None,
            damage: None,
            beside: None,
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

    /// Sets the seed of the random sequences. A [`Failure`](crate::conformance::Failure) prints the seed that found it. Default: random.
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
    /// suite then checks sentence E3: calls with this log fail as [`Corrupt`](limiter_core::ErrorKind::Corrupt) and change no other log.
    /// [`Phase::Several`] uses it, if the store applies operations as one.
    pub fn damage(
        mut self,
        damage: impl Fn(LogKey<'_>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.damage = Some(Arc::new(damage));
        self
    }

    /// Sets another store of the same kind, with other logs. The suite checks that the two have different
    /// [identities](limiter_core::WindowStore::identity).
    pub fn beside<S: WindowStore + ?Sized>(mut self, other: Arc<S>) -> Self {
        self.beside = Some(Arc::new(other));
        self
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Suite");
        out.field("sizes", &self.sizes).finish_non_exhaustive()
    }
}
