//! One decision over several limiters.

mod decision;
mod merge;
mod part;
mod undecided;

use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;

pub use self::decision::{JointDecision, PartDecision};
pub use self::part::{Part, PartOutcome};
pub use self::undecided::Undecided;
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::store::clock::BoxFuture;
use crate::store::{SyncStore, WindowStore};

/// Calls on several limiters that are admitted all together or not at all, each with its key, cost and policy.
///
/// `.await` it, or call [`now`](Self::now) where the stores are synchronous. Both return a [`JointDecision`].
///
/// Calls on one store are made as [one](crate::WindowStore::apply_all) if it can change their logs together: in Redis, the logs on one
/// server, or in one hash slot of a Cluster. Other calls are made one after another: acquires and peeks, then acquires without
/// receipts because no limit is exact, then records, then advisory calls and statuses. Once one denies, the others are only looked
/// up, for the longest wait of all, and the charges made before are refunded. An attempt that denies first stays where the policy
/// [counts attempts](crate::Counting::Attempts). Repetitions of an idempotency key and charges without a
/// [receipt](crate::Decision::receipt) are not refunded. An invalid call is an error before any store is asked, and the others are
/// then only looked up.
///
/// ```
/// # use std::sync::Arc;
/// # use limiter_core::{AllOf, Limiter, SharedStore, policy};
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # futures::executor::block_on(async {
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let customer = Limiter::new("customer", policy!("2/1m"), store.clone());
/// let model = Limiter::new("model", policy!("10000/1m"), store);
///
/// let call = || AllOf::new().with(customer.acquire(7)).with(model.acquire("large").cost(4_000));
/// for _ in 0..2 {
///     let charges = call().await?.into_result()?;
///     charges[1].settle(1_250).await?;
/// }
/// let denied = call().await?.into_result().unwrap_err();
/// assert!(denied.to_string().starts_with("customer: the limit 2/1m is exceeded; retry after"));
/// // The customer's denial did not charge the model.
/// assert_eq!(model.status("large").await?.used(), 2_500);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// # Several calls on one log
/// Acquires on one log are one acquire of the summed cost, at the place of the first, and so are records. A sum above a maximum is
/// the error that such a cost is. The charge is one entry with one permit, which settles the sum and refunds the whole. To settle a
/// call alone, give it [its own entry](Part::own_entry). Peeks on one log are one peek of the largest cost, because they take
/// nothing.
///
/// Calls that differ in their kind, policy, time, idempotency key or options stay separate. Calls on one log that stay separate are
/// made one after another, so concurrent callers may deny each other.
///
/// # Cancel safety
/// As for a single acquire: a value that is dropped while a store is asked may leave charges. The keys then admit less until
/// these expire, never more. To keep none, spawn the decision.
///
/// # Concurrent calls
/// Between calls that are not made as one, another caller may see a charge that is about to be refunded, and be denied by it.
/// **So add limiters that many callers share last**: a caller that its own limiter denies then never charges them.
#[must_use = "nothing happens until it is awaited, or `now` is called"]
#[derive(Debug)]
pub struct AllOf<'a, S: WindowStore = SharedStore> {
    parts: SmallVec<[Part<'a, S>; 2]>,
    options: Options,
}

/// The options of a decision.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    is_refundable: bool,
    timeout: Option<Duration>,
}

impl<'a, S: WindowStore> AllOf<'a, S> {
    /// Returns a decision over no limiters, which admits.
    pub fn new() -> Self {
        Self {
            parts: SmallVec::new(),
            options: Options::default(),
        }
    }

    /// Adds a call: a request, or a [`Part`] with options.
    pub fn with(mut self, part: impl Into<Part<'a, S>>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Asks the stores for receipts of all charges, because they will be settled or refunded.
    pub fn refundable(mut self) -> Self {
        self.options.is_refundable = true;
        self
    }

    /// Sets how long the stores may take together. Default: as long as each takes. Refunds have the same time once more.
    ///
    /// Each call has an equal share, and calls that are made as one have theirs together. Nine tenths of it are the
    /// [timeout](crate::store::Hints::timeout) of the store, and the rest is left for a fallback's decision. With the feature
    /// `tokio`, a store has failed after its share.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Makes the calls on synchronous stores, without a future. Returns the first error of a call, as an [`Acquire`](super::Acquire) does.
    pub fn now(self) -> Result<JointDecision<'a, S>, Error>
    where
        S: SyncStore,
    {
        let waits = || Error::new(ErrorKind::Inconsistent, "a synchronous store waits");
        let decided = Undecided::from(self).decide().now_or_never();
        decided.ok_or_else(waits)?.or_error()
    }
}

impl<S: WindowStore> Default for AllOf<'_, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, S: WindowStore> IntoFuture for AllOf<'a, S> {
    type Output = Result<JointDecision<'a, S>, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Undecided::from(self).decide().await.or_error() })
    }
}
