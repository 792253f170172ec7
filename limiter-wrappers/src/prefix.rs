//! Keys of one tenant.

use async_trait::async_trait;
use limiter_core::store::{Facts, LogKey, Op, Otherwise, Settlement, SettlementFacts, attempt};
use limiter_core::{Decision, Error, Key, KeyBuf, NowStore, Timer, WindowStore};
use std::task::Poll;

/// Gives every key a prefix, such as the name of a tenant.
///
/// The store sees the key that the tuple `(prefix, key)` makes: `acme,customer 7`, where a `,` or `\` in either part is escaped
/// with `\`. Different prefixes never share a log, even if nested. A limiter without this wrapper reaches the same log with the tuple
/// as its key, or with a key that contains a comma.
///
/// Decisions, facts and errors are those of the store, but errors return the caller's key.
///
/// # Examples
/// ```
/// # use limiter_core::{Limiter, policy};
/// # use limiter_testkit::OracleStore as MemoryStore;
/// use std::sync::Arc;
/// use limiter_wrappers::Prefix;
///
/// let store = Arc::new(MemoryStore::new());
/// let acme = Limiter::new("search", policy!("1/1m"), Prefix::new("acme", store.clone()));
/// let umbrella = Limiter::new("search", policy!("1/1m"), Prefix::new("umbrella", store));
/// assert!(acme.acquire("customer 7").now()?.allowed());
/// assert!(umbrella.acquire("customer 7").now()?.allowed());
/// assert!(!acme.acquire("customer 7").now()?.allowed());
/// # Ok::<(), limiter_core::Error>(())
/// ```
///
/// # Cancel safety
/// As the store's.
#[derive(Clone, Debug)]
pub struct Prefix<S> {
    store: S,
    prefix: KeyBuf,
}

impl<S> Prefix<S> {
    /// Returns `store` with `prefix` in front of every key. Any key is a valid prefix, also the empty one.
    #[must_use]
    pub fn new(prefix: impl Key, store: S) -> Self {
        Self { store, prefix: KeyBuf::from(prefix.to_key().as_ref()) }
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    fn key(&self, log: LogKey<'_>) -> KeyBuf {
        (&self.prefix, log.key).to_key()
    }
}

/// Returns the operation on another key.
fn op_on<'a>(mut op: Op<'a>, key: &'a KeyBuf) -> Op<'a> {
    op.log = LogKey::new(op.log.name, key);
    op
}

/// Returns the settlement on another key.
fn settlement_on<'a>(mut settlement: Settlement<'a>, key: &'a KeyBuf) -> Settlement<'a> {
    settlement.log = LogKey::new(settlement.log.name, key);
    settlement
}

/// Replaces the store's key in an error about one key.
fn with_callers_key<T>(result: Result<T, Error>, log: LogKey<'_>) -> Result<T, Error> {
    result.map_err(|error| if error.key().is_some() { error.with_log(log) } else { error })
}

#[async_trait]
impl<S: WindowStore> WindowStore for Prefix<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        let key = self.key(op.log);
        with_callers_key(self.store.apply(op_on(op, &key)).await, op.log)
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        let key = self.key(settlement.log);
        with_callers_key(self.store.settle(settlement_on(settlement, &key)).await, settlement.log)
    }

    async fn reset(&self, log: LogKey<'_>) -> Result<bool, Error> {
        let key = self.key(log);
        with_callers_key(self.store.reset(LogKey::new(log.name, &key)).await, log)
    }

    fn try_decide(&self, op: Op<'_>, otherwise: Otherwise<'_>) -> Poll<Result<Decision, Error>> {
        let attempted = || {
            let key = self.key(op.log);
            attempt(&self.store, op_on(op, &key)).map(|result| with_callers_key(result, op.log))
        };
        attempted().map_or_else(otherwise, Poll::Ready)
    }

    fn timer(&self) -> Option<&dyn Timer> {
        self.store.timer()
    }
}

impl<S: NowStore> NowStore for Prefix<S> {
    fn apply_now(&self, op: &Op<'_>) -> Facts {
        self.store.apply_now(&op_on(*op, &self.key(op.log)))
    }

    fn decide_now(&self, op: Op<'_>) -> Result<Decision, Error> {
        let key = self.key(op.log);
        with_callers_key(self.store.decide_now(op_on(op, &key)), op.log)
    }

    fn settle_now(&self, settlement: &Settlement<'_>) -> SettlementFacts {
        self.store.settle_now(&settlement_on(*settlement, &self.key(settlement.log)))
    }

    fn reset_now(&self, log: LogKey<'_>) -> bool {
        self.store.reset_now(LogKey::new(log.name, &self.key(log)))
    }
}
