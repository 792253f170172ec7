//! Permits: admitted acquires that can be settled or refunded.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::call::Call;
#[cfg(feature = "tokio")]
pub(super) use super::hold::Moment;
use super::settle::Settle;
use super::target::Target;
use super::verbs::Acquire;
use super::wait;
use crate::decision::Decision;
use crate::denied::Denied;
use crate::error::{Error, ErrorKind};
use crate::limiter::SharedStore;
use crate::settled::Settled;
use crate::store::facts::Entry;
use crate::store::op::{EntryId, Mode};
use crate::store::settlement::Receipt;
use crate::store::{SyncStore, WindowStore};

/// Stands for a moment where permits are not held.
#[cfg(not(feature = "tokio"))]
pub(super) type Moment = std::convert::Infallible;

/// Returns the current moment, if permits can be held.
pub(super) fn moment() -> Option<Moment> {
    #[cfg(feature = "tokio")]
    return Some(Moment::now());
    #[cfg(not(feature = "tokio"))]
    None
}

/// An acquire for a [`Permit`](crate::Permit).
///
/// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`PermitDecision`].
///
/// # Errors
/// As for an [`Acquire`], and [`NeedsExactLimit`](ErrorKind::NeedsExactLimit) if every limit has a [resolution](crate::Limit::resolution).
///
/// # Cancel safety
/// See [`Limiter`](crate::Limiter).
#[must_use = "a request does nothing until it is awaited, or `now` is called"]
#[derive(Debug)]
pub struct AcquirePermit<'a, S, B> {
    pub(super) acquire: Acquire<'a, S, B>,
    /// When it was sent, for [`Permit::hold`].
    pub(super) sent: Option<Moment>,
}

impl<'a, S, B: AsRef<[u8]>> Acquire<'a, S, B> {
    /// Returns a [`PermitDecision`] instead of a decision: an acquire that can be settled or refunded if it is admitted.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # let limiter = Limiter::new("search", policy!("5/10s"), limiter_testkit::ReferenceStore::new());
    /// // Reserve four units, and charge one.
    /// if let Ok(permit) = limiter.acquire("customer 7").cost(4).permit().now()?.into_result() {
    ///     assert!(permit.settle(1).now()?.applied());
    /// }
    /// assert_eq!(limiter.status("customer 7").now()?.used(), 1);
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    pub fn permit(mut self) -> AcquirePermit<'a, S, B> {
        self.call.hints.wants_receipt = true;
        AcquirePermit {
            acquire: self,
            sent: None,
        }
    }
}

impl<'a, S, B: AsRef<[u8]>> AcquirePermit<'a, S, B> {
    /// Makes the call on a synchronous store, without a future. Returns the errors of the [type](Self), apart from the store's.
    pub fn now(self) -> Result<PermitDecision<'a, S>, Error>
    where
        S: SyncStore,
    {
        let Acquire { call, .. } = self.acquire;
        call.op().check_receipts()?;
        let sent = moment();
        PermitDecision::of(&call, call.now()?, sent)
    }

    /// Waits like [`Acquire::within`], and returns its errors and those of the [type](Self).
    pub async fn within(self, wait: Duration) -> Result<PermitDecision<'a, S>, Error>
    where
        S: WindowStore,
    {
        let Acquire { call, .. } = &self.acquire;
        call.op().check_receipts()?;
        let mut sent = None;
        let decision = wait::until_it_fits(call, wait, || sent = moment()).await?;
        PermitDecision::of(call, decision, sent)
    }
}

impl<'a, S, B> Future for AcquirePermit<'a, S, B>
where
    S: WindowStore,
    B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
{
    type Output = Result<PermitDecision<'a, S>, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.sent = self.sent.or_else(moment);
        let sent = self.sent;
        let Acquire { call, running } = &mut self.acquire;
        if let Err(error) = call.op().check_receipts() {
            return Poll::Ready(Err(error));
        }
        let decision = call.poll(running, context);
        decision.map(|decision| PermitDecision::of(call, decision?, sent))
    }
}

/// The decision on an acquire that asked for a [`Permit`].
#[must_use = "a decision may be a denial"]
#[derive(Debug)]
pub struct PermitDecision<'a, S>(Result<Permit<'a, S>, Denied>);

/// An admitted acquire, which can be settled or refunded later.
///
/// Dropping a permit keeps the charge: a request that crashed, or whose client disconnected, has still used its units.
///
/// A permit can be settled while an exact limit counts its acquire. If the acquire had a [caller-supplied time](super::Acquire::at),
/// settlements happen at that time, or at a later one set with [`Settle::at`]. Without a [receipt](Self::receipt), the charge stays, and
/// nothing is [applied](crate::Settled::applied).
///
/// ```
/// # use limiter_core::{Limiter, policy};
/// # use limiter_testkit::ReferenceStore as MemoryStore;
/// # let chat = Limiter::new("chat", policy!("10000/1m"), MemoryStore::new());
/// match chat.acquire("customer 7").cost(4_000).permit().now()?.into_result() {
///     Ok(permit) => {
///         // The response used fewer tokens than reserved.
///         let settled = permit.settle(1_250).now()?;
///         assert_eq!(settled.status().remaining(), 8_750);
///     }
///     Err(denied) => println!("retry in {:?}", denied.retry_after()),
/// }
/// # Ok::<(), limiter_core::Error>(())
/// ```
///
/// # Work that breaks off
/// Charge it for what it has done so far: settle in a guard that is dropped with the work, in a task, because `drop` cannot await. With a
/// refund instead, a client could break off each stream on purpose, and streams would be free.
///
/// # Acquire and refund, or peek and record?
/// There are two ways to count only some calls, such as failed logins. They differ when calls overlap. Assume a limit of
/// three failures per minute:
///
/// - **Acquire first, refund on success.** Each call holds a unit while it runs. Of four concurrent correct logins, the
///   fourth is denied. In return, at most three guesses are ever in flight. Use this if no extra guess may get through.
/// - **Peek first, record on failure.** All four correct logins succeed. But a hundred concurrent guesses all see an empty
///   log, so all hundred are tried. Use this only if overshooting the limit by the calls in flight is harmless.
#[derive(Clone, Debug)]
pub struct Permit<'a, S = SharedStore> {
    pub(super) target: Target<'a, S>,
    /// Names the entry, even if it has no receipt. Names none if nothing was counted.
    pub(super) entry: Receipt,
    decision: Decision,
    /// Whether a renewal has begun whose outcome is unknown.
    pub(super) is_uncertain: bool,
    /// When the acquire or the last successful renewal was sent, if that is known.
    pub(super) sent: Option<Moment>,
}

impl<'a, S> PermitDecision<'a, S> {
    pub(super) fn of<B: AsRef<[u8]>>(
        call: &Call<'a, S, B>,
        decision: Decision,
        sent: Option<Moment>,
    ) -> Result<Self, Error> {
        if decision.is_denied() {
            return Ok(Self(Err(Denied::new(None, decision))));
        }
        // The entry of a repeated acquire may be old, so when this call was sent does not matter.
        let sent = sent.filter(|_| !decision.is_repeated());
        Permit::of_entry(Target::of(call), decision)
            .map(|permit| Self(Ok(Permit { sent, ..permit })))
            .ok_or_else(|| {
                let text = "the store admitted an acquire but returned no entry for it";
                Error::new(ErrorKind::Inconsistent, text).with_log(call.op().log)
            })
    }

    /// Returns the permit, or the error [`Denied`] if the acquire was denied, for `?`.
    pub fn into_result(self) -> Result<Permit<'a, S>, Denied> {
        self.0
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        self.0
            .as_ref()
            .map_or_else(Denied::decision, Permit::decision)
    }
}

impl<'a, S> Permit<'a, S> {
    /// Returns `None` if the decision should have an entry and has none.
    pub(super) fn of_entry(target: Target<'a, S>, decision: Decision) -> Option<Self> {
        let none = || Entry {
            id: EntryId::from_u128(0),
            at: decision.at(),
        };
        let entry = decision.entry();
        let entry = entry.or_else(|| decision.is_uncounted().then(none))?;
        let window = target.op(Mode::Acquire).receipt_window()?;
        Some(Self {
            target,
            entry: Receipt::new(entry.id, entry.at, window),
            decision,
            is_uncertain: false,
            sent: None,
        })
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.target.key.as_ref()
    }

    /// Returns the receipt of the acquire's entry, since the last [renewal](Self::renew) if there was one. `None` if the acquire exceeded
    /// the limiter's default policy, or if it has [no entry](Decision::appended) because the store was down and admits during outages.
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        self.decision.receipt().map(|_| self.entry)
    }

    /// Returns the decision that admitted the acquire.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Replaces the cost of the acquire with the actual cost. A cost of 0 refunds it.
    ///
    /// A permit can be settled repeatedly, for example as a stream reveals its cost.
    pub fn settle(&self, cost: u64) -> Settle<'_, S, &[u8]> {
        // Without a receipt the charge stays: an id that no entry of the log has settles nothing.
        let no_entry = || {
            let other = EntryId::from_u128(!self.entry.entry().as_u128());
            Receipt::new(other, self.entry.at(), self.entry.window())
        };
        let receipt = self.receipt().unwrap_or_else(no_entry);
        self.target.settle(receipt, cost)
    }

    /// Replaces the cost of the acquire with the actual cost, or records that cost if the acquire has expired by now.
    ///
    /// Use it if work may take longer than the window: settling an expired acquire has no effect, so the work would not count.
    /// [`Settled::recorded`](crate::Settled::recorded) returns `true` in that case. An acquire that was refunded or reset within the
    /// window stays removed. An entry that still counts after its receipt has expired keeps its cost. Takes a second round trip if
    /// it records.
    pub fn settle_or_record(&self, cost: u64) -> Settle<'_, S, &[u8]> {
        Settle {
            or_record: self.decision.appended(),
            ..self.settle(cost)
        }
    }

    /// Acquires more units for the same work, with the same key and policy: its next instalment.
    ///
    /// A stream takes an instalment before it spends it, and is cut at the first denial, where a reservation of the longest stream would
    /// deny others for nothing. Settle the last instalment's permit at the end: a stream that breaks off costs that instalment whole.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # let chat = Limiter::new("chat", policy!("1200/1m"), std::sync::Arc::new(limiter_testkit::ReferenceStore::new()));
    /// let mut paid = chat.acquire("customer 7").cost(500).permit().now()?.into_result()?;
    /// paid = paid.acquire_more(500).permit().now()?.into_result()?.into_owned();
    /// assert!(paid.acquire_more(500).now()?.is_denied(), "the stream is cut after 1,000 tokens");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_more(&self, cost: u64) -> Acquire<'_, S, &[u8]> {
        let again = self.target.call(Mode::Acquire);
        let call = Call {
            cost,
            id: None,
            ..again
        };
        Acquire {
            call,
            running: None,
        }
    }

    /// Removes the acquire from the log, as if it had never happened.
    pub fn refund(&self) -> Settle<'_, S, &[u8]> {
        self.settle(0)
    }

    /// Moves the acquire's entry to now, with its cost, so that it counts for another window.
    ///
    /// It checks no limit, because the entry counts already. If the log no longer holds the entry,
    /// [`Settled::applied`](crate::Settled::applied) returns `false`. If the acquire had an idempotency key, a renewal may be repeated
    /// after an error; otherwise, a renewal whose reply was lost makes the next one report that the entry is gone.
    ///
    /// `hold`, with the feature `tokio`, renews a permit while work runs. On a synchronous store,
    /// [`Limiter::renew`](crate::Limiter::renew) needs no future; the permit then keeps the old receipt, so settle by
    /// [`Settled::receipt`](crate::Settled::receipt).
    ///
    /// # Errors
    /// If the store fails.
    ///
    /// # Cancel safety
    /// A renewal that is dropped may have taken effect, as after an error.
    pub async fn renew(&mut self) -> Result<Settled, Error>
    where
        S: WindowStore,
    {
        let sent = moment();
        self.is_uncertain = true;
        // With it, a renewal can be repeated.
        let id = self.target.id.filter(|_| self.receipt().is_some());
        let settled = self.settle(1).renewing(id).await?;
        self.is_uncertain = false;
        if let Some(receipt) = settled.receipt() {
            (self.entry, self.sent) = (receipt, sent);
        }
        Ok(settled)
    }

    /// Returns the same permit without its borrows, so that it can move into a task or a response body.
    #[must_use]
    pub fn into_owned(self) -> Permit<'static, S>
    where
        S: Clone,
    {
        Permit {
            target: self.target.into_owned(),
            ..self
        }
    }
}
