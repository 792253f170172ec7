//! One decision over several limiters.

mod background;
mod part;

use std::fmt;
use std::future::{pending, poll_fn};
use std::mem;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::background::Background;
use self::part::Receipts;
pub use self::part::{Answer, Part};
use crate::error::Error;
use crate::limiter::SharedStore;
use crate::store::WindowStore;

/// Calls on several limiters that are admitted all together or not at all, each with its key, cost and policy.
///
/// The calls are made in the order in which they were added. Once one denies, the others are only looked up, so that
/// [`retry_after`](Self::retry_after) is the longest wait of all, and the charges made before are refunded. A denied attempt stays
/// where the policy [counts attempts](crate::Counting::Attempts).
///
/// ```
/// use limiter_core::request::Together;
/// # use std::sync::Arc;
/// # use limiter_core::{Limiter, SharedStore, policy};
/// # use limiter_testkit::OracleStore as MemoryStore;
/// # futures::executor::block_on(async {
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let customer = Limiter::new("customer", policy!("2/1m"), store.clone());
/// let model = Limiter::new("model", policy!("10000/1m"), store);
///
/// let call = || Together::new().and(customer.acquire(7)).and(model.acquire("large").cost(4_000));
/// for _ in 0..2 {
///     let mut call = call();
///     assert!(call.decide().await?);
///     call.confirm();
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
/// All charges are refunded when the value is dropped, until [`confirm`](Self::confirm) keeps them: also those of a call that
/// the store is still answering. Stores that answer without waiting are refunded in place. Other stores need a runtime: the
/// refunds run in the [background](Self::refund_in). They are lost if the process ends or the store fails; the charge then stays
/// until it expires. A charge without a [receipt](crate::Decision::receipt) is not refunded: it exceeds the limiter's default policy,
/// or is a record above a maximum.
///
/// # Concurrent calls
/// Each limiter decides atomically, several do not. Another caller may see a charge that is about to be refunded and be denied by
/// it. So one limiter admits exactly its maximum if enough is asked for, and several admit at most their maxima. Add limiters that
/// many callers share last: a caller that its own limiter denies then never charges them.
#[must_use = "nothing is asked until `decide` is called"]
pub struct Together<'a, S: WindowStore + Clone = SharedStore> {
    parts: SmallVec<[Part<'a, S>; 2]>,
    background: Option<Background>,
    confirms_on_admission: bool,
    is_confirmed: bool,
}

impl<'a, S: WindowStore + Clone> Together<'a, S> {
    /// Returns a decision over no limiters, which admits.
    pub fn new() -> Self {
        Self { parts: SmallVec::new(), background: None, confirms_on_admission: false, is_confirmed: false }
    }

    /// Adds a call: a request, or a [`Part`] with options.
    pub fn and(mut self, part: impl Into<Part<'a, S>>) -> Self {
        self.push(part);
        self
    }

    /// Adds a call, like [`and`](Self::and).
    pub fn push(&mut self, part: impl Into<Part<'a, S>>) {
        self.parts.push(part.into());
    }

    /// Sets what runs the refunds that nobody waits for. Default: tokio with the feature `tokio` and in a tokio runtime, otherwise
    /// nothing.
    pub fn refund_in(&mut self, background: impl Into<Option<Background>>) -> &mut Self {
        self.background = background.into();
        self
    }

    /// [Confirms](Self::confirm) as soon as no call can deny any more, for callers that neither settle nor refund a charge that all
    /// calls admitted.
    ///
    /// A charge that is never refunded needs no receipt, so under a limit with a [resolution](crate::Limit::resolution) it merges with
    /// others at once instead of after ten minutes. There, the charge of a single call stays if the value is dropped while the
    /// store is answering.
    pub fn confirm_on_admission(&mut self) -> &mut Self {
        self.confirms_on_admission = true;
        self
    }

    /// Returns the same calls without what they borrow, so that they can move into a task.
    pub fn into_owned(mut self) -> Together<'static, S> {
        let parts = mem::take(&mut self.parts).into_iter().map(Part::into_owned).collect();
        let (background, confirms_on_admission) = (self.background.take(), self.confirms_on_admission);
        Together { parts, background, confirms_on_admission, is_confirmed: self.is_confirmed }
    }

    /// Makes the calls. Returns `true` if none denies; otherwise all charges are refunded.
    ///
    /// # Errors
    /// The first error of a store. All charges are refunded then.
    ///
    /// # Cancel safety
    /// Dropping the future and calling this again goes on where it stopped.
    pub async fn decide(&mut self) -> Result<bool, Error> {
        let admitted = self.decide_with(|_| false, pending()).await;
        if !admitted {
            self.refund().await;
        }
        self.take_error().map_or(Ok(admitted), Err)
    }

    /// Makes the calls, and returns `true` if none denies. The answers are in [`parts`](Self::parts).
    ///
    /// A call whose error `tolerate` accepts is left out: it does not deny. When `late` completes, calls without an answer fail
    /// with its error. Does not refund: call [`refund`](Self::refund) after a denial, or drop the value.
    pub async fn decide_with(&mut self, tolerate: impl Fn(&Error) -> bool, late: impl Future<Output = Error>) -> bool {
        let (mut late, mut lateness) = (pin!(late), None);
        let mut denied = self.is_denied();
        let last_to_deny = self.parts.iter().rposition(Part::can_deny);
        for i in 0..self.parts.len() {
            let receipts = self.receipts(i, last_to_deny);
            let Some(part) = self.parts.get_mut(i).filter(|part| part.answer().is_none()) else { continue };
            let result = poll_fn(|context| {
                if let Poll::Ready(result) = part.poll(denied, receipts, context) {
                    return Poll::Ready(result);
                }
                if lateness.is_none()
                    && let Poll::Ready(error) = late.as_mut().poll(context)
                {
                    lateness = Some(error);
                }
                lateness
                    .as_ref()
                    .map_or(Poll::Pending, |late| Poll::Ready(Err(Error::new(late.kind(), late.to_string()))))
            });
            let result = result.await;
            part.set_answer(result, &tolerate);
            denied |= part.denies();
            self.is_confirmed |= self.confirms_on_admission && !denied && last_to_deny.is_none_or(|last| last <= i);
        }
        !denied
    }

    /// Returns when the charge of call `i` needs a receipt.
    fn receipts(&self, i: usize, last_to_deny: Option<usize>) -> Receipts {
        let is_kept = self.parts.get(i).is_some_and(Part::keeps_charge);
        match last_to_deny {
            _ if !self.confirms_on_admission => Receipts::Always,
            Some(last) if i < last && !is_kept => Receipts::Always,
            // A drop would refund the calls before this one alone.
            Some(last) if i == last && i > 0 => Receipts::UnlessAtOnce,
            _ => Receipts::Never,
        }
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

    /// Returns the calls and their answers, in the order in which they were added.
    #[must_use]
    pub fn parts(&self) -> &[Part<'a, S>] {
        &self.parts
    }

    /// Returns the calls, to settle or reset them.
    pub fn parts_mut(&mut self) -> &mut [Part<'a, S>] {
        &mut self.parts
    }

    /// Forgets the answers after a denial, so that the next decision makes the calls again. [Kept](Part::keep_charge) charges stay,
    /// and their calls are not made again.
    pub fn forget(&mut self) {
        self.parts.iter_mut().for_each(Part::forget);
    }

    /// Takes the first error of a call that denies.
    pub fn take_error(&mut self) -> Option<Error> {
        self.parts.iter_mut().find_map(Part::take_error)
    }

    /// Keeps all charges when the value is dropped.
    pub fn confirm(&mut self) {
        self.is_confirmed = true;
    }
}

impl<S: WindowStore + Clone> Default for Together<'_, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: WindowStore + Clone> Drop for Together<'_, S> {
    fn drop(&mut self) {
        if !self.is_confirmed {
            self.parts.iter_mut().for_each(|part| part.abandon(self.background.as_ref()));
        }
    }
}

impl<S: WindowStore + Clone> fmt::Debug for Together<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}
