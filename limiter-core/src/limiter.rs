//! The front end.

use std::any::Any;
use std::sync::Arc;

use crate::clock::Timer;
use crate::name::Name;
use crate::policy::Policy;
use crate::store::{DynWindowStore, WindowStore};

/// A store that is chosen at run time: in memory, in Redis or any other.
pub type SharedStore = Arc<dyn DynWindowStore>;

/// A name, a default policy and a store: the limiter of one thing.
///
/// Each verb returns a small builder that is also a future:
///
/// ```
/// # use std::sync::Arc;
/// # use limiter_core::{Limiter, SharedStore, policy};
/// # use limiter_testkit::OracleStore as MemoryStore;
/// # futures::executor::block_on(async {
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let search = Limiter::new("search", policy!("5/10s, 100/1h"), store.clone());
/// let login = Limiter::new("login", policy!("3/1m"), store);
///
/// let decision = search.acquire("customer 7").await?;
/// assert!(decision.allowed());
/// let gold = policy!("500/10s");
/// let decision = search.acquire("customer 8").cost(20).policy(&gold).await?;
/// assert_eq!(decision.remaining(), 480);
/// // Another name, another log.
/// assert_eq!(login.status("customer 7").await?.used(), 0);
/// # Ok::<(), limiter_core::Error>(()) }).unwrap();
/// ```
///
/// On a store that answers at once, such as one in memory, `.now()` replaces `.await`:
/// `limiter.acquire("customer 7").now()?`.
///
/// | verb | appends | use it to |
/// |---|---|---|
/// | [`acquire`](Self::acquire) | if it fits, or always where the policy counts attempts | limit |
/// | [`record`](Self::record) | always | meter usage |
/// | [`peek`](Self::peek) | never | ask whether it would fit |
/// | [`status`](Self::status) | never | read the usage, for a response header or a page |
/// | [`settle`](Self::settle), [`refund`](Self::refund) | replaces the cost of an entry, removes it | charge afterwards, undo |
/// | [`reset`](Self::reset) | removes the log | unblock a key |
///
/// # Names
/// A log belongs to a name and a key. Limiters with different names never share a log, even on one store and for one key;
/// limiters with the same name do, also across processes on one Redis. Give each limited thing its own name.
///
/// # Cancel safety
/// A future that is dropped before it is polled does nothing. Over a network, a future dropped later may or may not have
/// had its effect on the store, never a part of it. On a store that answers at once there is no later.
#[derive(Clone, Debug)]
pub struct Limiter<S = SharedStore> {
    pub(crate) store: S,
    name: Name,
    policy: Arc<Policy>,
    timer: Option<Arc<dyn Timer>>,
}

impl<S> Limiter<S> {
    /// Returns the limiter called `name` over `store`, with `policy` as the default.
    #[must_use]
    pub fn new(name: impl Into<Name>, policy: impl Into<Policy>, store: S) -> Self {
        Self { store, name: name.into(), policy: Arc::new(policy.into()), timer: None }
    }

    /// Returns the same limiter with a timer, with which [`within`](crate::Request::within) waits. Default: the store's timer if it has
    /// one, otherwise [`TokioTimer`](crate::TokioTimer) with the feature `tokio`, otherwise none.
    #[must_use]
    pub fn with_timer(mut self, timer: impl Timer) -> Self {
        self.timer = Some(Arc::new(timer));
        self
    }

    /// Returns the name.
    #[inline]
    pub fn name(&self) -> Name {
        self.name
    }

    /// Returns the default policy.
    #[inline]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the same limiter with its store behind `dyn`, so that limiters over different stores have one type. Wraps the
    /// store in another `Arc` unless it is a [`SharedStore`] already.
    #[must_use]
    pub fn into_shared(self) -> Limiter
    where
        S: WindowStore,
    {
        let Self { store, name, policy, timer } = self;
        let shared = (&store as &dyn Any).downcast_ref::<SharedStore>().cloned();
        Limiter { store: shared.unwrap_or_else(|| Arc::new(store)), name, policy, timer }
    }

    pub(crate) fn own_timer(&self) -> Option<&dyn Timer> {
        self.timer.as_deref()
    }
}
