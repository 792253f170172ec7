//! One decision over several limiters.

mod part;

use std::collections::HashSet;
use std::ops::Deref;
use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;

pub use self::part::{Part, PartOutcome};
use crate::decision::{Decision, decide as decide_one};
use crate::denied::Denied;
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::request::call::Call;
use crate::request::permit::Permit;
use crate::request::wait::within;
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
    is_refundable: bool,
    timeout: Option<Duration>,
}

impl<'a, S: WindowStore> AllOf<'a, S> {
    /// Returns a decision over no limiters, which admits.
    pub fn new() -> Self {
        Self {
            parts: SmallVec::new(),
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

    /// Makes the calls on synchronous stores, without a future. Returns the first error of a call, as an [`Acquire`](super::Acquire) does.
    pub fn now(self) -> Result<JointDecision<'a, S>, Error>
    where
        S: SyncStore,
    {
        let waits = || Error::new(ErrorKind::Inconsistent, "a synchronous store waits");
        decide(self).now_or_never().ok_or_else(waits)?.or_error()
    }

    /// Returns the calls and their outcomes, in the order in which they were added.
    #[must_use]
    pub fn parts(&self) -> &[Part<'a, S>] {
        &self.parts
    }

    /// Returns `true` unless the calls were [denied](Self::is_denied).
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        !self.is_denied()
    }

    /// Returns `true` if a call denies, failed or was not made. If all were made, then nothing is charged, except by calls that
    /// [keep their charge](Part::keep_charge).
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.parts.iter().any(Part::denies)
    }

    /// Returns how long to wait until the same calls fit, if nothing else is charged. `None` if none denies, or if one failed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let denying = self.parts.iter().filter(|part| part.denies());
        let waits = denying.map(|part| match &part.outcome {
            Some(PartOutcome::Denied(decision)) => decision.retry_after(),
            _ => None,
        });
        waits.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// Returns the decision, or the first error of a call that denies by it.
    fn or_error(self) -> Result<JointDecision<'a, S>, Error> {
        let mut denying = self.parts.iter().filter(|part| part.denies());
        match denying.find_map(Part::error) {
            Some(error) => Err(error.clone()),
            None => Ok(JointDecision(self)),
        }
    }

    /// Returns how long this many of the calls may take.
    fn share(&self, calls: usize) -> Option<Duration> {
        Some(self.timeout? / self.parts.len().max(1) as u32 * calls as u32)
    }

    /// Notes the errors of invalid calls. Returns the places of the others that have not been made, in the order in which they are
    /// made, and how many of the last ones a store may make as one.
    fn order(&mut self) -> (SmallVec<[usize; 4]>, usize) {
        let mut order = SmallVec::<[usize; 4]>::new();
        for (place, part) in self.parts.iter_mut().enumerate() {
            match part.check() {
                _ if part.outcome.is_some() => {}
                Ok(()) => order.push(place),
                Err(error) => part.note(Err(error)),
            }
        }
        order.sort_by_key(|place| self.parts[*place].turn());
        let last = order.last().map(|place| &self.parts[*place]);
        let mut logs = HashSet::new();
        // `logs` keeps two calls on one log apart.
        let goes_together = |place: &&usize| {
            let part = &self.parts[**place];
            last.is_some_and(|last| part.goes_with(last)) && logs.insert(part.log())
        };
        let together = order.iter().rev().take_while(goes_together).count();
        (order, together)
    }

    /// Returns `true` if a call that was made denies.
    fn has_denial(&self) -> bool {
        let denies = |part: &Part<'_, S>| part.outcome.is_some() && part.denies();
        self.parts.iter().any(denies)
    }

    /// Returns a call that is made together with others, `group` in all, and before the `later` ones. Its charge needs a receipt if it may
    /// be settled, or refunded because of a later call.
    fn call(&self, place: usize, group: usize, later: &[usize]) -> Call<'_, S, &[u8]> {
        // Advisory calls come last, and never deny.
        let may_deny = later
            .first()
            .is_some_and(|place| !self.parts[*place].is_advisory);
        let mut call = self.parts[place].call(self.has_denial(), self.is_refundable || may_deny);
        call.hints.timeout = self.share(group).map(|share| share / 10 * 9);
        call
    }

    /// Makes calls as one. Returns `None` if they have to be made one by one.
    async fn ask_together(&self, places: &[usize]) -> Option<Vec<Result<Decision, Error>>> {
        let all = places.iter().map(|place| &self.parts[*place]);
        let calls = places
            .iter()
            .map(|place| self.call(*place, places.len(), &[]));
        let calls: Vec<_> = calls.collect();
        let mut ops = Vec::with_capacity(calls.len());
        for (part, call) in all.clone().zip(&calls) {
            ops.push(JointOp {
                // `order` has noted what fails this.
                op: call.op().checked().ok()?,
                is_advisory: part.is_advisory || self.has_denial(),
                keeps_charge: part.keeps_charge,
            });
        }
        let decide = |(joint, facts): (&JointOp<'_>, Result<Facts, Error>)| {
            let facts = facts?;
            let op = joint.described_by(&facts);
            facts.verify(&op)?;
            Ok(decide_one(&op, facts))
        };
        let store = all.clone().next()?.store();
        match within(self.share(places.len()), store.apply_all(&ops)).await {
            Ok(Some(facts)) if facts.len() == ops.len() => {
                Some(ops.iter().zip(facts).map(decide).collect())
            }
            Err(error) if error.is_retryable() => {
                Some(all.map(|_| Err(error.without_log())).collect())
            }
            // An error about one of the logs belongs to its call alone.
            Ok(_) | Err(_) => None,
        }
    }
}

/// The decision of an [`AllOf`], to whose calls it dereferences. No call has failed, apart from calls that never deny.
#[must_use = "a decision may be a denial"]
#[derive(Debug)]
pub struct JointDecision<'a, S: WindowStore = SharedStore>(AllOf<'a, S>);

impl<'a, S: WindowStore> Deref for JointDecision<'a, S> {
    type Target = AllOf<'a, S>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a, S: WindowStore> JointDecision<'a, S> {
    /// Returns the charges in the order of the calls, to settle or refund them, or the denial with the longest wait, for `?`.
    pub fn into_result(self) -> Result<Vec<Permit<'a, S>>, Denied> {
        let denied = |part: &Part<'a, S>| match &part.outcome {
            Some(PartOutcome::Denied(denial)) if part.denies() => {
                Some(Denied::new(Some(part.limiter().name()), denial.clone()))
            }
            _ => None,
        };
        // The first of equals, like the binding limit.
        let all = self.parts.iter().rev().filter_map(denied);
        match all.max_by_key(Denied::retry_after) {
            Some(longest) => Err(longest),
            None => {
                let permits = self.0.parts.into_iter().filter_map(Part::into_permit);
                Ok(permits.collect())
            }
        }
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
        Box::pin(async { decide(self).await.or_error() })
    }
}

/// Makes the calls, and leaves errors in the [parts](AllOf::parts). Awaiting an [`AllOf`] returns the first.
pub async fn decide<S: WindowStore>(mut calls: AllOf<'_, S>) -> AllOf<'_, S> {
    let (order, mut together) = calls.order();
    let mut left = &order[..];
    while let [place, later @ ..] = left {
        if (2..=together).contains(&left.len()) {
            together = 0;
            if let Some(made) = calls.ask_together(left).await {
                for (place, decision) in left.iter().zip(made) {
                    calls.parts[*place].note(decision);
                }
                break;
            }
        }
        let decision = calls.call(*place, 1, later);
        let decision = within(calls.share(1), decision.decide()).await;
        calls.parts[*place].note(decision);
        left = later;
    }
    if calls.has_denial() {
        refund(&mut calls).await;
    }
    calls
}

/// Decides if no store has to wait. Otherwise the calls are the error, some of them made, to be [decided](decide). Dropping them may
/// leave charges.
#[allow(clippy::result_large_err, reason = "the caller continues with either")]
pub fn try_decide<S: WindowStore>(mut calls: AllOf<'_, S>) -> Result<AllOf<'_, S>, AllOf<'_, S>> {
    let (order, together) = calls.order();
    let mut left = &order[..];
    while let [place, later @ ..] = left {
        let is_one_call = (2..=together).contains(&left.len());
        let call = calls.call(*place, 1, later);
        let Some(decision) = (!is_one_call)
            .then(|| call.limiter.store.try_decide(call.op()))
            .flatten()
        else {
            return Err(calls);
        };
        calls.parts[*place].note(decision);
        left = later;
    }
    match calls.has_denial() && calls.parts.iter().any(Part::is_undone) {
        true => Err(calls),
        false => Ok(calls),
    }
}

/// Returns the same calls, to be made again after a denial. Those whose charge is kept are not made again.
pub fn again<S: WindowStore>(mut calls: AllOf<'_, S>) -> AllOf<'_, S> {
    for part in &mut calls.parts {
        part.outcome
            .take_if(|outcome| !matches!(outcome, PartOutcome::Charged(_)));
    }
    calls
}

/// Refunds all charges except [kept](Part::keep_charge) ones. If the store fails, or if the future is dropped, charges may stay.
pub async fn refund<S: WindowStore>(calls: &mut AllOf<'_, S>) {
    let share = calls.share(1);
    let undone = calls.parts.iter_mut().filter(|part| part.is_undone());
    for part in undone {
        let _ = within(share, part.settle(0)).await;
    }
}

/// Returns the same calls without their borrows, so that they can move into a task.
pub fn into_owned<S: WindowStore + Clone>(all: AllOf<'_, S>) -> AllOf<'static, S> {
    AllOf {
        parts: all.parts.into_iter().map(Part::into_owned).collect(),
        ..all
    }
}

/// Returns the calls, to [settle](Part::settle) or [reset](Part::reset) them.
pub fn parts_mut<'c, 'a, S: WindowStore>(calls: &'c mut AllOf<'a, S>) -> &'c mut [Part<'a, S>] {
    &mut calls.parts
}
