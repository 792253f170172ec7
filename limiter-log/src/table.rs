//! What a database has to do.

use std::fmt::Debug;

pub use async_trait::async_trait;
use limiter_core::{BoxFuture, Error, Timestamp};

/// A table of bytes by key that can replace bytes if they are still the old ones.
///
/// [`LogStore`](crate::LogStore) is a store over a table. It decides what the bytes are; the table only compares them.
///
/// # Errors
/// Return [`ErrorKind::Unavailable`](limiter_core::ErrorKind::Unavailable) if the database cannot be reached,
/// [`Timeout`](limiter_core::ErrorKind::Timeout) if it does not respond in time, and
/// [`Configuration`](limiter_core::ErrorKind::Configuration) if only an operator can help. A lost comparison is no error.
///
/// A request that never ends keeps the logs of its calls, and one of the [workers](Self::workers), for as long as one of the callers waits:
/// end it with a timeout.
///
/// # Cancel safety
/// A future is dropped before it completes if no caller waits for it any more. Then all of its changes take effect or none, perhaps
/// later, and later calls are served as before.
#[async_trait]
pub trait Table: Debug + Send + Sync + 'static {
    /// Returns the bytes of each key, as they are at one moment, and the table's time.
    ///
    /// Read the clock in the statement or transaction that reads the bytes: an operation happens at that time. Expired logs may be
    /// among them.
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error>;

    /// Saves all changes, if the bytes of all keys are still [`old`](Change::old). Otherwise leaves the table unchanged and returns `false`.
    ///
    /// The keys are sorted, so transactions that lock rows in this order do not deadlock.
    ///
    /// From `until` on, a minute after the load by the table's clock, a key that must be absent has perhaps been saved and removed since
    /// the load. The table must then save nothing and return `false`. A table whose swaps never take that long, even after their
    /// future is dropped, may ignore it.
    async fn swap(&self, changes: Vec<Change>, until: Timestamp) -> Result<bool, Error>;

    /// Runs a worker, which serves waiting calls until none is ready. `tokio::spawn(worker);` does.
    ///
    /// It must run to its end even if no call is polled. It is called while a call or a worker is polled. A table whose futures never
    /// wait may run it in place with `worker.now_or_never()` of the crate `futures`. If the worker is dropped or panics, the calls that
    /// wait fail.
    fn spawn(&self, worker: BoxFuture<'static, ()>);

    /// Returns how many workers may run at a time. Each makes one request at a time. Default: 8.
    fn workers(&self) -> usize {
        8
    }

    /// Returns `true` if `load` and `swap` accept several keys, as one transaction does. Otherwise they always get exactly one, and
    /// [`AllOf`](limiter_core::AllOf) decides over several limiters one by one. Default: `false`.
    fn takes_several(&self) -> bool {
        false
    }
}

/// The result of [`Table::load`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The bytes of each key, in the order of the keys. `None` if the table does not hold the key.
    pub logs: Vec<Option<Vec<u8>>>,
    /// The time by the table's clock.
    pub now: Timestamp,
}

/// A change of one key's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key: 1 to 255 bytes.
    pub key: Vec<u8>,
    /// The bytes that the table must still hold. `None`: it must not hold the key.
    pub old: Option<Vec<u8>>,
    /// What to do with the key.
    pub new: New,
}

/// The effect of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum New {
    /// Leave the key as it is, and only compare it: other keys of the call depend on it. Its expiry stays as well. One change alone is
    /// never this, nor is one of a key that must be absent.
    Unchanged,
    /// Save these bytes.
    Saved {
        /// The bytes.
        log: Vec<u8>,
        /// From this time on by the table's clock, the table may remove the key: a minute after the entries of the log have expired. If it
        /// removed the key earlier, a late swap would find it absent, as at its load, and admit units again.
        expires_at: Timestamp,
    },
}
