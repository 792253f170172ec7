//! One decision over several limiters.

mod decision;
mod part;

use std::collections::HashSet;
use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;

pub use self::decision::{JointDecision, parts_mut, refund};
pub use self::part::{Part, PartOutcome};
use crate::decision::{Decision, decide as decide_one};
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::request::call::Call;
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

    /// Returns how long this many of the calls may take.
    fn share(&self, calls: usize) -> Option<Duration> {
        Some(self.timeout? / self.parts.len().max(1) as u32 * calls as u32)
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

/// Returns the same calls without their borrows, so that they can move into a task.
pub fn into_owned<S: WindowStore + Clone>(all: AllOf<'_, S>) -> AllOf<'static, S> {
    AllOf {
        parts: all.parts.into_iter().map(Part::into_owned).collect(),
        ..all
    }
}

/// Makes the calls, and leaves errors in the [parts](AllOf::parts). Awaiting an [`AllOf`] returns the first.
pub async fn decide<S: WindowStore>(mut calls: AllOf<'_, S>) -> AllOf<'_, S> {
    let mut turns = Turns::of(&mut calls);
    while !turns.group().is_empty() {
        let made = turns.ask(&calls).await;
        turns.note(&mut calls, made);
    }
    if turns.is_denied {
        refund(&mut calls).await;
    }
    calls
}

/// Decides if no store has to wait. Otherwise the calls are the error, some of them made, to be [decided](decide). Dropping them may
/// leave charges.
#[allow(clippy::result_large_err, reason = "the caller continues with either")]
pub fn try_decide<S: WindowStore>(mut calls: AllOf<'_, S>) -> Result<AllOf<'_, S>, AllOf<'_, S>> {
    let mut turns = Turns::of(&mut calls);
    while let [place] = *turns.group() {
        let call = turns.call(&calls, place);
        let Some(made) = calls.parts[place].store().try_decide(call.op()) else {
            return Err(calls);
        };
        turns.note(&mut calls, [made]);
    }
    let must_refund = turns.is_denied && calls.parts.iter().any(Part::is_undone);
    if must_refund || !turns.group().is_empty() {
        return Err(calls);
    }
    Ok(calls)
}

/// Returns the same calls, to be made again after a denial. Those whose charge is kept are not made again.
pub fn again<S: WindowStore>(mut calls: AllOf<'_, S>) -> AllOf<'_, S> {
    for part in &mut calls.parts {
        part.outcome
            .take_if(|outcome| !matches!(outcome, PartOutcome::Charged(_)));
    }
    calls
}

/// The calls that have not been made.
struct Turns {
    /// Their places, in the order in which they are made.
    order: SmallVec<[usize; 4]>,
    /// How many of them have been made meanwhile.
    next: usize,
    /// From here on, one store may make all of them as one.
    together: usize,
    /// Whether a call that was made denies.
    is_denied: bool,
}

impl Turns {
    /// Notes the errors of invalid calls, and orders the others.
    fn of<S: WindowStore>(AllOf { parts, .. }: &mut AllOf<'_, S>) -> Self {
        let mut order = SmallVec::<[usize; 4]>::new();
        for (place, part) in parts.iter_mut().enumerate() {
            if part.outcome.is_none() {
                match part.check() {
                    Ok(()) => order.push(place),
                    Err(error) => part.note(Err(error)),
                }
            }
        }
        if !order.is_sorted_by_key(|place| parts[*place].turn()) {
            order.sort_by_cached_key(|place| parts[*place].turn());
        }
        let denies = |part: &Part<'_, S>| part.outcome.is_some() && part.denies();
        let last = order.last().map(|place| &parts[*place]);
        let mut logs = HashSet::new();
        let joins = |part: &Part<'_, S>| last.is_some_and(|last| part.goes_with(last));
        let behind = order.iter().rev().map(|place| &parts[*place]);
        // `logs` keeps two calls on one log apart.
        let behind = behind.take_while(|part| joins(part) && logs.insert(part.log()));
        Self {
            together: order.len() - behind.count(),
            is_denied: parts.iter().any(denies),
            order,
            next: 0,
        }
    }

    /// Returns the places of the next calls: all that are left if they may go together, otherwise one.
    fn group(&self) -> &[usize] {
        let left = &self.order[self.next..];
        match self.next < self.together {
            true => left.get(..1).unwrap_or_default(),
            false => left,
        }
    }

    /// Returns a call of the group. Its charge needs a receipt if it may be settled, or refunded because of a later call.
    fn call<'c, S: WindowStore>(
        &self,
        calls: &'c AllOf<'_, S>,
        place: usize,
    ) -> Call<'c, S, &'c [u8]> {
        // Advisory calls come last, and never deny.
        let later = self.order.get(self.next + self.group().len());
        let may_deny = later.is_some_and(|place| !calls.parts[*place].is_advisory);
        calls.parts[place].call(self.is_denied, calls.is_refundable || may_deny)
    }

    /// Makes the calls of the group, as one if there are several. Returns nothing if they have to be made one by one.
    async fn ask<S: WindowStore>(&self, calls: &AllOf<'_, S>) -> Vec<Result<Decision, Error>> {
        let group = self.group();
        let share = calls.share(group.len());
        let call = |place: &usize| {
            let mut call = self.call(calls, *place);
            call.hints.timeout = share.map(|share| share / 10 * 9);
            call
        };
        let all: SmallVec<[_; 2]> = group.iter().map(call).collect();
        if let [call] = &all[..] {
            return vec![within(share, call.decide()).await];
        }
        let mut ops = Vec::with_capacity(all.len());
        for (place, call) in group.iter().zip(&all) {
            let part = &calls.parts[*place];
            // `Turns::of` has noted what fails this.
            let Ok(op) = call.op().checked() else {
                return Vec::new();
            };
            ops.push(JointOp {
                op,
                is_advisory: part.is_advisory || self.is_denied,
                keeps_charge: part.keeps_charge,
            });
        }
        let decide = |(joint, facts): (&JointOp<'_>, Result<Facts, Error>)| {
            let facts = facts?;
            let op = joint.described_by(&facts);
            facts.verify(&op)?;
            Ok(decide_one(&op, facts))
        };
        let store = calls.parts[group[0]].store();
        match within(share, store.apply_all(&ops)).await {
            Ok(Some(facts)) => ops.iter().zip(facts).map(decide).collect(),
            Err(error) if error.is_retryable() => {
                group.iter().map(|_| Err(error.without_log())).collect()
            }
            // An error about one of the logs is that of its call alone.
            Ok(None) | Err(_) => Vec::new(),
        }
    }

    /// Notes what the store returned for the group, or nothing if it cannot make the group as one.
    fn note<S: WindowStore>(
        &mut self,
        calls: &mut AllOf<'_, S>,
        made: impl IntoIterator<Item = Result<Decision, Error>>,
    ) {
        let before = self.next;
        for decision in made {
            let part = &mut calls.parts[self.order[self.next]];
            part.note(decision);
            self.is_denied |= part.denies();
            self.next += 1;
        }
        if self.next == before {
            self.together = usize::MAX;
        }
    }
}
