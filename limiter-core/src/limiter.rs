//! The front end: a named limiter over a store.

use std::any::Any;
use std::sync::Arc;

use crate::name::Name;
use crate::policy::{IntoPolicy, Policy};
use crate::store::WindowStore;
use crate::store::log_key::LogKey;

/// A store whose type is chosen at run time: in memory, Redis, or any other.
pub type SharedStore = Arc<dyn WindowStore>;

/// A rate limiter: a name, a default policy and a store.
///
/// Each method returns a builder that is also a future:
///
/// ```
/// # use std::sync::Arc;
/// # use limiter_core::{Limiter, SharedStore, policy};
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # futures::executor::block_on(async {
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let search = Limiter::new("search", policy!("5/10s, 100/1h"), store.clone());
/// let login = Limiter::new("login", policy!("3/1m"), store);
///
/// let decision = search.acquire("customer 7").await?;
/// assert!(decision.is_allowed());
/// let gold = policy!("500/10s");
/// let decision = search.acquire("customer 8").cost(20).policy(&gold).await?;
/// assert_eq!(decision.remaining(), 480);
/// // A limiter with another name has its own logs.
/// assert_eq!(login.status("customer 7").await?.used(), 0);
/// # Ok::<(), limiter_core::Error>(()) }).unwrap();
/// ```
///
/// On a synchronous store ([`SyncStore`](crate::SyncStore)), such as the in-memory store, `.now()` replaces `.await`:
/// `limiter.acquire("customer 7").now()?`. `Limiter` without a type is a limiter over a [`SharedStore`], which only `.await` can ask;
/// [`into_shared`](Self::into_shared) returns one.
///
/// | method | effect on the log | use it to |
/// |---|---|---|
/// | [`acquire`](Self::acquire) | appends an entry if it fits, or always if the policy counts attempts | limit |
/// | [`record`](Self::record) | always appends an entry | meter usage |
/// | [`peek`](Self::peek) | none | check whether a cost would fit |
/// | [`status`](Self::status) | none | read the usage, for a response header or a dashboard |
/// | [`settle`](Self::settle) | replaces the cost of an entry | charge the actual cost afterwards |
/// | [`refund`](Self::refund) | removes an entry | undo an acquire |
/// | [`renew`](Self::renew) | moves an entry to now | hold a slot while work runs |
/// | [`reset`](Self::reset) | removes the log | unblock a key |
///
/// A log belongs to a [name](Name) and a key. Limiters with the same name and store share their logs, even across processes on one Redis
/// server.
///
/// # Cancel safety
/// A future dropped before its first poll has no effect. A future dropped later may or may not have changed the store, but
/// never in part. On a synchronous store, a future that does not wait completes in its first poll.
#[derive(Clone, Debug)]
pub struct Limiter<S = SharedStore> {
    pub(crate) store: S,
    name: Name,
    policy: Arc<Policy>,
}

impl<S> Limiter<S> {
    /// Returns a limiter called `name` over `store`, with `policy` as its default policy.
    #[must_use]
    pub fn new(name: impl Into<Name>, policy: impl IntoPolicy, store: S) -> Self {
        Self {
            store,
            name: name.into(),
            policy: Arc::new(policy.into_policy()),
        }
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
        let shared = (&self.store as &dyn Any).downcast_ref::<SharedStore>();
        Limiter {
            store: shared.cloned().unwrap_or_else(|| Arc::new(self.store)),
            name: self.name,
            policy: self.policy,
        }
    }

    #[inline(always)]
    pub(crate) fn log<'k>(&self, key: &'k impl AsRef<[u8]>) -> LogKey<'k> {
        LogKey {
            name: self.name,
            key: key.as_ref(),
        }
    }
}
