//! One decision over several limiters.

mod joint;

use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;

pub use self::joint::{JointDecision, JointDenied, Part, PartOutcome};
use crate::decision::{Decision, decide};
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::request::call::Call;
use crate::store::clock::BoxFuture;
use crate::store::facts::Facts;
use crate::store::joint::JointOp;
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
/// [receipt](crate::Decision::receipt) are not refunded.
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
    /// A store could not make several calls as one.
    one_by_one: bool,
    is_refundable: bool,
    timeout: Option<Duration>,
}

impl<'a, S: WindowStore> AllOf<'a, S> {
    /// Returns a decision over no limiters, which admits.
    #[allow(clippy::new_without_default, reason = "nobody needs a default")]
    pub fn new() -> Self {
        Self {
            parts: SmallVec::new(),
            one_by_one: false,
            is_refundable: false,
            timeout: None,
        }
    }

    /// Adds a call: a request, or a [`Part`] with options.
    pub fn with(mut self, part: impl Into<Part<'a, S>>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// Asks the stores for receipts of all charges, because they will be settled or refunded.
    pub fn refundable(mut self) -> Self {
        self.is_refundable = true;
        self
    }

    /// Sets how long the stores may take together. Default: as long as each takes. Refunds have the same time once more.
    ///
    /// Each call has an equal share, and calls that are made as one have theirs together. Nine tenths of it are the
    /// [timeout](crate::store::Hints::timeout) of the store, and the rest is left for a fallback's decision. With the feature
    /// `tokio`, a store has failed after its share.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Returns the same calls without their borrows, so that they can move into a task.
    pub fn into_owned(self) -> AllOf<'static, S>
    where
        S: Clone,
    {
        AllOf {
            parts: self.parts.into_iter().map(Part::into_owned).collect(),
            one_by_one: self.one_by_one,
            is_refundable: self.is_refundable,
            timeout: self.timeout,
        }
    }

    /// Makes the calls on synchronous stores, without a future.
    ///
    /// # Errors
    /// The first error of a call: [`InvalidCost`](ErrorKind::InvalidCost), [`CostExceedsLimit`](ErrorKind::CostExceedsLimit).
    pub fn now(self) -> Result<JointDecision<'a, S>, Error>
    where
        S: SyncStore,
    {
        let waits = || Error::new(ErrorKind::Inconsistent, "a synchronous store waits");
        self.decide().now_or_never().ok_or_else(waits)?.or_error()
    }

    /// Decides if no store has to wait.
    ///
    /// # Errors
    /// Otherwise returns the calls, some of them made, to be [decided](Self::decide). Dropping them may leave charges.
    #[allow(clippy::result_large_err, reason = "the caller continues with either")]
    pub fn try_decide(mut self) -> Result<JointDecision<'a, S>, Self> {
        while let Some(group) = self.next() {
            match self.try_once(&group) {
                Some(decision) => self.parts[group[0]].note(decision),
                None => return Err(self),
            }
        }
        if self.is_denied() && self.parts.iter().any(Part::is_undone) {
            return Err(self);
        }
        Ok(JointDecision(self))
    }

    /// Makes the calls, and leaves errors in the [parts](JointDecision::parts). Awaiting the value returns the first.
    pub async fn decide(mut self) -> JointDecision<'a, S> {
        while let Some(group) = self.next() {
            let made = match self.try_once(&group) {
                Some(decision) => vec![(group[0], decision)],
                None => self.ask(&group).await,
            };
            self.one_by_one |= made.is_empty();
            for (place, decision) in made {
                self.parts[place].note(decision);
            }
        }
        let mut all = JointDecision(self);
        if all.is_denied() {
            all.refund().await;
        }
        all
    }

    /// Returns the places of the next calls: all that are left if they may go together, otherwise one.
    fn next(&self) -> Option<SmallVec<[usize; 4]>> {
        let part = |place: &usize| &self.parts[*place];
        let mut left: SmallVec<[usize; 4]> = (0..self.parts.len()).collect();
        left.retain(|place| part(place).outcome.is_none());
        left.sort_by_key(|place| part(place).turn());
        let (first, others) = left.split_first()?;
        let is_alone = |(i, other): (usize, &usize)| {
            let mut earlier = left[..=i].iter().map(|place| part(place).log());
            !part(other).goes_with(part(first)) || earlier.any(|log| log == part(other).log())
        };
        if self.one_by_one || others.iter().enumerate().any(is_alone) {
            left.truncate(1);
        }
        Some(left)
    }

    /// Makes a single call if its store decides without waiting.
    fn try_once(&self, group: &[usize]) -> Option<Result<Decision, Error>> {
        let [place] = *group else { return None };
        self.parts[place]
            .store()
            .try_decide(self.call(place, group).op())
    }

    fn is_denied(&self) -> bool {
        self.parts.iter().any(Part::denies)
    }

    /// Returns a call of a group. Its charge needs a receipt if it may be settled, or refunded because of a later call.
    fn call(&self, place: usize, group: &[usize]) -> Call<'_, S, &[u8]> {
        let may_deny = |part: &Part<'_, S>| part.outcome.is_none() && !part.is_advisory;
        let is_later = |(i, part): &(usize, &Part<'_, S>)| !group.contains(i) && may_deny(part);
        let wants_receipt =
            self.is_refundable || self.parts.iter().enumerate().any(|of| is_later(&of));
        self.parts[place].call(self.is_denied(), wants_receipt)
    }

    /// Makes calls, as one if there are several. Returns nothing if they have to be made one by one.
    async fn ask(&self, group: &[usize]) -> Vec<Made> {
        let share = self.share(group.len());
        let call = |place: &usize| {
            let mut call = self.call(*place, group);
            call.hints.timeout = share.map(|share| share / 10 * 9);
            call
        };
        let calls: SmallVec<[_; 2]> = group.iter().map(call).collect();
        if let ([place], [call]) = (group, &calls[..]) {
            return vec![(*place, within(share, call.apply()).await)];
        }
        let mut ops = Vec::with_capacity(calls.len());
        for (place, call) in group.iter().zip(&calls) {
            match call.op().checked() {
                Ok(op) => ops.push(JointOp {
                    op,
                    is_advisory: self.parts[*place].is_advisory || self.is_denied(),
                    keeps_charge: self.parts[*place].keeps_charge,
                }),
                Err(error) => return vec![(*place, Err(error))],
            }
        }
        let decide = |(joint, facts): (&JointOp<'_>, Result<Facts, Error>)| {
            let facts = facts?;
            let op = joint.answered_by(&facts);
            facts.verify(&op)?;
            Ok(decide(&op, facts))
        };
        let decisions: Vec<_> =
            match within(share, self.parts[group[0]].store().apply_all(&ops)).await {
                Ok(Some(facts)) => ops.iter().zip(facts).map(decide).collect(),
                Err(error) if error.is_retryable() => {
                    group.iter().map(|_| Err(error.without_log())).collect()
                }
                // An error about one of the logs is that of its call alone.
                Ok(None) | Err(_) => return Vec::new(),
            };
        group.iter().copied().zip(decisions).collect()
    }

    /// Returns how long so many of the calls may take.
    fn share(&self, calls: usize) -> Option<Duration> {
        Some(self.timeout? / self.parts.len().max(1) as u32 * calls as u32)
    }
}

/// The place of a call, and what its store decided.
type Made = (usize, Result<Decision, Error>);

/// Awaits a store for its share of the time, on tokio's timers. Outside a runtime, it may not wait.
async fn within<T>(
    share: Option<Duration>,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    #[cfg(feature = "tokio")]
    if let Some(share) = share {
        if tokio::runtime::Handle::try_current().is_err() {
            let text = "an asynchronous store's timeout needs a tokio runtime";
            let error = Error::new(ErrorKind::Configuration, text);
            return call.now_or_never().unwrap_or(Err(error));
        }
        let text = "the store did not respond in time";
        let late = |_| Err(Error::new(ErrorKind::Timeout, text));
        return tokio::time::timeout(share, call).await.unwrap_or_else(late);
    }
    let _ = share;
    call.await
}

impl<'a, S: WindowStore> IntoFuture for AllOf<'a, S> {
    type Output = Result<JointDecision<'a, S>, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { self.decide().await.or_error() })
    }
}
