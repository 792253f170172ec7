//! One decision over several limiters.

mod background;
mod calling;
mod life;
mod part;

use std::fmt;
use std::future::{pending, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use futures_util::future::{Either, MaybeDone, maybe_done, select};
use smallvec::{SmallVec, smallvec};

pub use self::background::Background;
use self::calling::{Calling, Decided};
pub use self::life::PartOutcome;
pub use self::part::Part;
use crate::clock::instant;
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::store::WindowStore;

/// Calls on several limiters that are admitted all together or not at all, each with its key, cost and policy.
///
/// Calls on logs that one store can change together are made as [one](crate::WindowStore::apply_all), in one round trip: in Redis,
/// those on one server, or in one hash slot of a Cluster. All other calls are made one after another: first those that may not
/// fit, then records, then [advisory](Part::advisory) calls and statuses; otherwise in the order in which they were added. Once one
/// denies, the others are only looked up, so that [`retry_after`](Self::retry_after) is the longest wait of all, and the charges made
/// before are refunded. An attempt that denies first stays where the policy [counts attempts](crate::Counting::Attempts). A call that
/// repeats an idempotency key is never undone.
///
/// ```
/// use limiter_core::request::AllOf;
/// # use std::sync::Arc;
/// # use limiter_core::{Limiter, SharedStore, policy};
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # futures::executor::block_on(async {
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let customer = Limiter::new("customer", policy!("2/1m"), store.clone());
/// let model = Limiter::new("model", policy!("10000/1m"), store);
///
/// let call = || AllOf::new().with(customer.acquire(7)).with(model.acquire("large").cost(4_000));
/// for _ in 0..2 {
///     assert!(call().decide().await?);
/// }
/// let mut third = call();
/// assert!(!third.decide().await?);
/// assert!(third.retry_after().is_some());
/// // The customer's denial charged the model nothing.
/// assert_eq!(model.status("large").await?.used(), 8_000);
/// # Ok::<(), limiter_core::Error>(()) }).unwrap();
/// ```
///
/// # Charges of a dropped value
/// Charges are kept once no call can deny any more. Until then, dropping the value refunds them, including that of a pending
/// call. A [refundable](Self::refundable) value refunds them until [`confirm`](Self::confirm).
///
/// A charge is refunded in place if its store decides and refunds without waiting. Other refunds need a runtime: they run in
/// the [background](Self::refund_in). They are lost if the process exits or the store fails; the charge then stays until it
/// expires. A charge without a [receipt](crate::Decision::receipt) is not refunded: it exceeds the limiter's default policy, or
/// is a record above a maximum.
///
/// With a [resolution](crate::Limit::resolution), a charge that nothing refunds merges with others immediately instead of after
/// ten minutes. So the charges of a single round trip there stay if the value is dropped during the call, unless the value is
/// refundable.
///
/// # Concurrent calls
/// Calls that are made as one are atomic. Between other calls, another caller may see a charge that is about to be refunded and
/// be denied by it. So a limiter then admits at most its maximum. Add limiters that many callers share last. A caller that its
/// own limiter denies then never charges the shared ones. Calls with different given times, and a second call on the same log,
/// are made separately.
#[must_use = "nothing happens until `decide` is called"]
pub struct AllOf<'a, S: WindowStore + Clone = SharedStore> {
    parts: SmallVec<[Part<'a, S>; 2]>,
    /// The calls that are pending at a store.
    calling: Option<Calling<S>>,
    /// Those whose response was too late, or is missing.
    late: Vec<Calling<S>>,
    background: Option<Background>,
    is_refundable: bool,
    /// A store could not make several calls as one.
    one_by_one: bool,
    defers_refunds: bool,
    timeout: Option<Duration>,
    /// When the first store had to wait.
    began: Option<Instant>,
}

impl<'a, S: WindowStore + Clone> AllOf<'a, S> {
    /// Returns a decision over no limiters, which admits.
    pub fn new() -> Self {
        let (parts, late, background, timeout, began) = Default::default();
        let (is_refundable, one_by_one, defers_refunds) = (false, false, false);
        Self {
            parts,
            calling: None,
            late,
            background,
            is_refundable,
            one_by_one,
            defers_refunds,
            timeout,
            began,
        }
    }

    /// Gives all charges receipts, so that they can be settled, and refunds them on drop until [`confirm`](Self::confirm).
    pub fn refundable(mut self) -> Self {
        self.is_refundable = true;
        self
    }

    /// Returns a denial before its refunds are made: they run in the [background](Self::refund_in) when the value is dropped. Default:
    /// a decision waits for them.
    pub fn defer_refunds(mut self) -> Self {
        self.defers_refunds = true;
        self
    }

    /// Sets how long the stores may take together. Default: as long as each takes.
    ///
    /// Each call hands [its share](crate::store::Op::timeout) down to its store, so that a stack with a fallback decides in
    /// time, however many stores hang. A store that ignores it may take longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Adds a call: a request, or a [`Part`] with options.
    pub fn with(mut self, part: impl Into<Part<'a, S>>) -> Self {
        self.push(part);
        self
    }

    /// Adds a call, like [`with`](Self::with).
    pub fn push(&mut self, part: impl Into<Part<'a, S>>) {
        self.parts.push(part.into());
    }

    /// Sets the background that runs refunds without a waiting caller. Default: tokio with the feature `tokio` and in a tokio
    /// runtime, otherwise nothing.
    pub fn refund_in(&mut self, background: impl Into<Option<Background>>) -> &mut Self {
        self.background = background.into();
        self
    }

    /// Returns the same calls without their borrows, so that they can move into a task.
    pub fn into_owned(mut self) -> AllOf<'static, S> {
        let parts = mem::take(&mut self.parts)
            .into_iter()
            .map(Part::into_owned)
            .collect();
        let (calling, late, background) = (
            self.calling.take(),
            mem::take(&mut self.late),
            self.background.take(),
        );
        let Self {
            is_refundable,
            one_by_one,
            defers_refunds,
            timeout,
            began,
            ..
        } = self;
        AllOf {
            parts,
            calling,
            late,
            background,
            is_refundable,
            one_by_one,
            defers_refunds,
            timeout,
            began,
        }
    }

    /// Makes the calls. Returns `true` if none denies; otherwise all charges are refunded, unless that is
    /// [deferred](Self::defer_refunds).
    ///
    /// # Errors
    /// The first error of a store.
    ///
    /// # Cancel safety
    /// After the future is dropped, calling this again continues where it stopped.
    pub async fn decide(&mut self) -> Result<bool, Error> {
        let admitted = self.decide_with(|_| false, pending()).await;
        self.take_error().map_or(Ok(admitted), Err)
    }

    /// Like [`decide`](Self::decide), but leaves errors in [`parts`](Self::parts), and bounds the time.
    ///
    /// A call whose error `tolerate` accepts is left out: it does not deny. When `late` completes, pending calls fail with its
    /// error, and refunds stop. Call [`refund`](Self::refund) to make those that are left, or drop the value.
    ///
    /// # Cancel safety
    /// After the future is dropped, calling this again continues where it stopped.
    pub async fn decide_with(
        &mut self,
        tolerate: impl Fn(&Error) -> bool,
        late: impl Future<Output = Error>,
    ) -> bool {
        let mut late = pin!(maybe_done(late));
        loop {
            if self.calling.is_none() {
                let Some(places) = self.next_calls() else {
                    break;
                };
                self.start(places, &tolerate);
            }
            let Some(calling) = &mut self.calling else {
                continue;
            };
            let decided = in_time(poll_fn(|context| calling.poll(context)), late.as_mut()).await;
            if let Some(calling) = self.calling.take() {
                self.end(calling, decided, &tolerate);
            }
        }
        let denied = self.is_denied();
        if denied && !self.defers_refunds {
            let _ = in_time(self.refund(), late).await;
        }
        !denied
    }

    /// Returns the places of the next calls, which go together. A group that is not the last delays its records and advisory
    /// calls.
    fn next_calls(&self) -> Option<SmallVec<[usize; 4]>> {
        let mut left: SmallVec<[usize; 4]> = (0..self.parts.len())
            .filter(|place| !self.parts[*place].life.is_made)
            .collect();
        left.sort_by_key(|place| self.parts[*place].turn());
        let mut places: SmallVec<[usize; 4]> = smallvec![*left.first()?];
        let first = &self.parts[places[0]];
        if left.len() == 1 || self.one_by_one || !first.goes_with(first) {
            return Some(places);
        }
        for place in &left[1..] {
            let part = &self.parts[*place];
            let is_another = |other: &usize| self.parts[*other].log() != part.log();
            if part.goes_with(first) && places.iter().all(is_another) {
                places.push(*place);
            }
        }
        if places.len() < left.len() {
            places.retain(|place| self.parts[*place].turn() == first.turn());
        }
        Some(places)
    }

    /// Makes a call if its store decides without waiting. Otherwise the store begins to answer.
    fn start(&mut self, places: SmallVec<[usize; 4]>, tolerate: &impl Fn(&Error) -> bool) {
        let (is_denied, is_first) = (
            self.is_denied(),
            !self.parts.iter().any(|part| part.life.is_made),
        );
        let (mut others, mut undecided) = (0, false);
        for (place, part) in self.parts.iter().enumerate() {
            if !part.life.is_made && !places.contains(&place) {
                (others, undecided) = (others + 1, undecided | part.may_deny());
            }
        }
        let (is_refundable, may_refund) = (self.is_refundable, |part: &Part<'_, S>| {
            part.may_deny() && !part.keeps_charge
        });
        if let [place] = *places {
            let part = &mut self.parts[place];
            let ask = part.asks(is_denied, is_refundable || (may_refund(part) && undecided));
            if let Some(decision) = part
                .target
                .limiter
                .store
                .try_decide(ask.call(&part.target).op())
            {
                return part.note(ask, decision, true, tolerate);
            }
        }
        // While these calls are pending, a drop refunds them. If they are the only ones, their charge may stay.
        let parts = places.iter().map(|place| {
            let part = &self.parts[*place];
            let ask = part.asks(
                is_denied,
                is_refundable || (may_refund(part) && (undecided || !is_first)),
            );
            // If one denied already, the others deny nothing.
            Part {
                ask,
                is_advisory: is_denied || part.is_advisory,
                ..part.to_asked()
            }
        });
        let parts = parts.collect();
        self.calling = Some(Calling::new(places, parts, self.share(others)));
    }

    /// Returns how long the next store may take: half of what is left, or all of it if no call follows. So any number of stores
    /// that never respond take nine tenths of the time, and the rest is left for the fallback's decision.
    fn share(&mut self, others: usize) -> Option<Duration> {
        let (timeout, now) = (self.timeout?, instant());
        let began = *self.began.get_or_insert(now);
        let left = (timeout - timeout / 10).saturating_sub(now.saturating_duration_since(began));
        Some(if others > 0 { left / 2 } else { left })
    }

    /// Notes the results of calls, or that they were too late.
    fn end(
        &mut self,
        calling: Calling<S>,
        decided: Result<Decided<S>, Error>,
        tolerate: &impl Fn(&Error) -> bool,
    ) {
        match decided {
            Ok(Ok(None)) => self.one_by_one = true,
            Ok(Ok(Some(decided))) => {
                for (place, (asked, decision)) in calling.places.into_iter().zip(decided) {
                    self.parts[place].note(asked.ask, decision, !calling.has_waited, tolerate);
                }
            }
            Ok(Err(error)) => self.fail(&calling.places, error, tolerate),
            Err(error) => {
                self.fail(&calling.places, error, tolerate);
                self.late.push(calling);
            }
        }
    }

    /// Notes that calls failed, or only the one whose log the error is about: then the others were not made.
    fn fail(&mut self, places: &[usize], error: Error, tolerate: &impl Fn(&Error) -> bool) {
        let is_about = |place: &&usize| {
            let log = self.parts[**place].log();
            (error.limiter_name(), error.key()) == (Some(log.name.as_str()), Some(log.key))
        };
        let about = if error.is_retryable() {
            None
        } else {
            places.iter().find(is_about)
        };
        let failed = about.map_or(places, std::slice::from_ref);
        let Some((last, others)) = failed.split_last() else {
            return;
        };
        for place in others {
            self.parts[*place].fail(error.without_log(), tolerate);
        }
        self.parts[*last].fail(error, tolerate);
    }

    /// Refunds all charges except [kept](Part::keep_charge) ones. If the store fails, the charge stays.
    ///
    /// # Cancel safety
    /// Dropping the value refunds the rest.
    pub async fn refund(&mut self) {
        for part in &mut self.parts {
            part.refund().await;
        }
    }

    /// Returns whether a call denies.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.parts.iter().any(Part::denies)
    }

    /// Returns how long to wait until the same calls fit, if nothing else is charged. `None` if none denies, or if no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let denying = self.parts.iter().filter(|part| part.denies());
        denying
            .map(Part::retry_after)
            .try_fold(None, |longest, wait| {
                wait.map(|wait| longest.max(Some(wait)))
            })?
    }

    /// Returns the calls and their outcomes, in the order in which they were added.
    #[must_use]
    pub fn parts(&self) -> &[Part<'a, S>] {
        &self.parts
    }

    /// Returns the calls, to settle or reset them.
    pub fn parts_mut(&mut self) -> &mut [Part<'a, S>] {
        &mut self.parts
    }

    /// Forgets the outcomes after a denial, so that the next decision makes the calls again. [Kept](Part::keep_charge) charges stay,
    /// and their calls are not made again.
    pub fn forget(&mut self) {
        self.parts.iter_mut().for_each(|part| part.life.forget());
        self.late
            .drain(..)
            .for_each(|calling| calling.abandon(self.background.as_ref()));
        self.one_by_one = false;
        self.began = None;
    }

    /// Takes the first error of a call that denies.
    pub fn take_error(&mut self) -> Option<Error> {
        self.parts.iter_mut().find_map(Part::take_error)
    }

    /// Keeps the charges of a [refundable](Self::refundable) value that no call denies.
    pub fn confirm(&mut self) {
        self.is_refundable = false;
    }
}

/// Returns the output of a future, or the error of `late` if that completes first.
async fn in_time<T>(
    future: impl Future<Output = T>,
    mut late: Pin<&mut MaybeDone<impl Future<Output = Error>>>,
) -> Result<T, Error> {
    match select(pin!(future), late.as_mut()).await {
        Either::Left((output, _)) => Ok(output),
        Either::Right(_) => {
            let error = late.output_mut().map(|late| late.without_log());
            Err(error.unwrap_or_else(|| {
                Error::new(ErrorKind::Timeout, "the store did not respond in time")
            }))
        }
    }
}

impl<S: WindowStore + Clone> Default for AllOf<'_, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: WindowStore + Clone> Drop for AllOf<'_, S> {
    fn drop(&mut self) {
        if self.is_refundable || self.parts.iter().any(Part::may_deny) {
            let background = self.background.as_ref();
            self.calling
                .take()
                .into_iter()
                .chain(self.late.drain(..))
                .for_each(|calling| calling.abandon(background));
            self.parts
                .iter_mut()
                .for_each(|part| part.abandon(background));
        }
    }
}

impl<S: WindowStore + Clone> fmt::Debug for AllOf<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}
