//! One decision over several limiters.

mod background;
mod life;
mod part;
mod time_left;

use std::fmt;
use std::future::{pending, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{Either, MaybeDone, maybe_done, select};
use smallvec::SmallVec;

pub use self::background::Background;
pub use self::life::PartOutcome;
pub use self::part::Part;
use self::part::Turn;
use self::time_left::TimeLeft;
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::store::WindowStore;

/// Calls on several limiters that are admitted all together or not at all, each with its key, cost and policy.
///
/// The calls are made one after the other: first those that may not fit, then records, then [advisory](Part::advisory) calls and
/// statuses; otherwise in the order in which they were added. Once one denies, the others are only looked up, so that
/// [`retry_after`](Self::retry_after) is the longest wait of all, and the charges made before are refunded. A denied attempt stays
/// where the policy [counts attempts](crate::Counting::Attempts).
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
/// Charges are kept as soon as no call can deny any more. Until then, dropping the value refunds them, including that of a call
/// that the store is still answering. A [refundable](Self::refundable) value refunds them until [`confirm`](Self::confirm).
///
/// A charge is refunded in place if its store answers and refunds without waiting. Other refunds need a runtime: they run in the
/// [background](Self::refund_in). They are lost if the process ends or the store fails; the charge then stays until it expires.
/// A charge without a [receipt](crate::Decision::receipt) is not refunded: it exceeds the limiter's default policy, or is a record
/// above a maximum.
///
/// With a [resolution](crate::Limit::resolution), a charge that nothing refunds merges with others immediately instead of after ten
/// minutes. So the charge of a single call there stays if the value is dropped while the store is answering, unless the value is
/// refundable.
///
/// # Concurrent calls
/// Each limiter decides atomically, several do not. Another caller may see a charge that is about to be refunded and be denied by
/// it. So one limiter admits exactly its maximum if enough is asked for, and several admit at most their maxima. Add limiters that
/// many callers share last: a caller that its own limiter denies then never charges them.
#[must_use = "nothing is asked until `decide` is called"]
pub struct AllOf<'a, S: WindowStore + Clone = SharedStore> {
    parts: SmallVec<[Part<'a, S>; 2]>,
    background: Option<Background>,
    is_refundable: bool,
    time: TimeLeft,
}

impl<'a, S: WindowStore + Clone> AllOf<'a, S> {
    /// Returns a decision over no limiters, which admits.
    pub fn new() -> Self {
        Self { parts: SmallVec::new(), background: None, is_refundable: false, time: TimeLeft::default() }
    }

    /// Gives all charges receipts, so that they can be settled, and refunds them on drop until [`confirm`](Self::confirm).
    pub fn refundable(mut self) -> Self {
        self.is_refundable = true;
        self
    }

    /// Sets how long the stores may take together. Default: as long as each takes.
    ///
    /// Each call hands [its share](crate::store::Op::timeout) down to its store, so that a stack with a fallback answers in time,
    /// however many stores hang. A store that ignores it may take longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.time.timeout = Some(timeout);
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

    /// Sets what runs the refunds that nobody waits for. Default: tokio with the feature `tokio` and in a tokio runtime, otherwise
    /// nothing.
    pub fn refund_in(&mut self, background: impl Into<Option<Background>>) -> &mut Self {
        self.background = background.into();
        self
    }

    /// Returns the same calls without what they borrow, so that they can move into a task.
    pub fn into_owned(mut self) -> AllOf<'static, S> {
        let parts = mem::take(&mut self.parts).into_iter().map(Part::into_owned).collect();
        let Self { is_refundable, time, .. } = self;
        AllOf { parts, background: self.background.take(), is_refundable, time }
    }

    /// Makes the calls. Returns `true` if none denies; otherwise all charges are refunded.
    ///
    /// # Errors
    /// The first error of a store.
    ///
    /// # Cancel safety
    /// Dropping the future and calling this again goes on where it stopped.
    pub async fn decide(&mut self) -> Result<bool, Error> {
        let admitted = self.decide_with(|_| false, pending()).await;
        self.take_error().map_or(Ok(admitted), Err)
    }

    /// Like [`decide`](Self::decide), but leaves errors in [`parts`](Self::parts), and bounds the time.
    ///
    /// A call whose error `tolerate` accepts is left out: it does not deny. When `late` completes, calls without an answer fail
    /// with its error, and refunds stop. Call [`refund`](Self::refund) to make those that are left, or drop the value.
    ///
    /// # Cancel safety
    /// Dropping the future and calling this again goes on where it stopped.
    pub async fn decide_with(&mut self, tolerate: impl Fn(&Error) -> bool, late: impl Future<Output = Error>) -> bool {
        let mut late = pin!(maybe_done(late));
        let mut denied = self.is_denied();
        let mut undecided = self.parts.iter().filter(|part| part.may_deny() && !part.life.is_made()).count();
        let mut several = self.parts.iter().any(|part| part.life.is_made());
        let mut calls = self.parts.iter().filter(|part| !part.life.is_made()).count();
        let time = &mut self.time;
        for turn in [Turn::MayNotFit, Turn::Records, Turn::Advises] {
            for part in self.parts.iter_mut().filter(|part| part.turn() == turn && !part.life.is_made()) {
                undecided -= usize::from(part.may_deny());
                let may_refund = part.may_deny() && !part.keeps_charge;
                let keep = self.is_refundable || (may_refund && undecided > 0);
                // A drop would refund the calls before this one alone.
                let keep = [keep, keep || (may_refund && several)];
                let call = poll_fn(|context| part.poll(denied, keep, || time.share(calls), context));
                if let Ok(Err(error)) | Err(error) = in_time(call, late.as_mut()).await {
                    part.fail(error, &tolerate);
                }
                denied |= part.denies();
                several = true;
                calls -= 1;
            }
        }
        if denied {
            let _ = in_time(self.refund(), late).await;
        }
        !denied
    }

    /// Refunds what was charged, except [kept](Part::keep_charge) charges. Where the store fails, the charge stays.
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
        denying.map(Part::retry_after).try_fold(None, |longest, wait| wait.map(|wait| longest.max(Some(wait))))?
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
        self.time.restart();
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
            let error = late.output_mut().map(|late| Error::new(late.kind(), late.to_string()));
            Err(error.unwrap_or_else(|| Error::new(ErrorKind::Timeout, "the store did not answer in time")))
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
            self.parts.iter_mut().for_each(|part| part.abandon(self.background.as_ref()));
        }
    }
}

impl<S: WindowStore + Clone> fmt::Debug for AllOf<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}
