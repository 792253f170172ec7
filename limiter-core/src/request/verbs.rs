//! The calls on one limiter: acquires, records, peeks and statuses, as builders that are also futures.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::call::{Call, Running};
use super::wait;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::policy::time::Timestamp;
use crate::status::Status;
use crate::store::op::{At, EntryId, Mode};
use crate::store::{SyncStore, WindowStore};

/// Defines a builder that is also a future. A macro for its options' documentation; [`Call::poll`] makes the call.
macro_rules! builder {
    ($(#[$doc:meta])* $name:ident, $output:ty $(, $convert:expr)?) => {
        $(#[$doc])*
        #[must_use = "a request does nothing until it is awaited, or `now` is called"]
        pub struct $name<'a, S, B> {
            pub(super) call: Call<'a, S, B>,
            /// The store's boxed future, once the first poll has started it.
            pub(super) running: Running<'a>,
        }

        impl<'a, S, B> $name<'a, S, B> {
            #[inline(always)]
            fn new(call: Call<'a, S, B>) -> Self {
                Self { call, running: None }
            }

            /// Sets the policy for this call, for example a gold customer's. Default: the limiter's policy.
            ///
            /// The call uses the same log. Its entry also counts in the limiter's default policy, and it never erases an entry
            /// that the default policy still counts.
            ///
            /// ```
            /// # use limiter_core::{Limiter, policy};
            /// # use limiter_testkit::ReferenceStore as MemoryStore;
            /// let search = Limiter::new("search", policy!("5/10s"), MemoryStore::new());
            /// let gold = policy!("50/10s");
            /// assert_eq!(search.acquire("customer 7").policy(&gold).now()?.remaining(), 49);
            /// # Ok::<(), limiter_core::Error>(())
            /// ```
            #[inline(always)]
            pub fn policy(mut self, policy: &'a Policy) -> Self {
                self.call.policy = Some(policy);
                self
            }

            /// Sets a caller-supplied time for the call. Default: the store's clock.
            ///
            /// Use it for tests and replays, or to record when an event happened. Do not mix caller-supplied times and the
            /// store's clock on one key unless the two clocks agree.
            #[inline(always)]
            pub fn at(mut self, at: Timestamp) -> Self {
                self.call.at = At::Given(at);
                self
            }
        }

        impl<S, B: AsRef<[u8]>> $name<'_, S, B> {
            /// Makes the call on a synchronous store, without a future.
            ///
            /// # Errors
            /// See the [guide](crate::request#which-errors-can-it-return). A call with a cost of 1 and no idempotency key never fails.
            #[inline(always)]
            pub fn now(self) -> Result<$output, Error>
            where
                S: SyncStore,
            {
                let Self { call, running } = self;
                // Always `None` here. Dropping it would force the whole request out of registers.
                std::mem::forget(running);
                call.now()$(.map($convert))?
            }
        }

        impl<'a, S, B> Future for $name<'a, S, B>
        where
            S: WindowStore,
            B: AsRef<[u8]> + Clone + Send + Sync + Unpin + 'a,
        {
            type Output = Result<$output, Error>;

            #[inline(always)]
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
                let Self { call, running } = &mut *self;
                call.poll(running, context)$(.map(|decision| decision.map($convert)))?
            }
        }

        impl<S, B> fmt::Debug for $name<'_, S, B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.call).finish()
            }
        }
    };
}

/// Defines the options of a builder whose call has a cost.
macro_rules! costs {
    ($name:ident) => {
        impl<S, B> $name<'_, S, B> {
            /// Sets the cost in units, which fit all together or not at all. Default: 1.
            ///
            /// An acquire or a peek accepts 1 to the policy's smallest maximum. A record accepts any cost of at least 1.
            ///
            /// ```
            /// # use limiter_core::{Limiter, policy};
            /// # use limiter_testkit::ReferenceStore as MemoryStore;
            /// let search = Limiter::new("search", policy!("5/10s"), MemoryStore::new());
            /// assert_eq!(search.acquire("customer 7").cost(3).now()?.remaining(), 2);
            /// assert!(search.acquire("customer 7").cost(3).now()?.is_denied());
            /// # Ok::<(), limiter_core::Error>(())
            /// ```
            #[inline(always)]
            pub fn cost(mut self, cost: u64) -> Self {
                self.call.cost = cost;
                self
            }

            /// Sets an idempotency key of 128 bits, such as a UUID. Repeating the call with the same key counts once.
            /// Default: none.
            ///
            /// While an exact limit counts the entry, a repetition does not append. If every limit has a
            /// [resolution](crate::Limit::resolution), the call fails with
            /// [`NeedsExactLimit`](crate::ErrorKind::NeedsExactLimit). A repetition returns the original verdict with the
            /// current usage, and [`cost`](crate::Decision::cost) is the cost that counts, even if the repetition has another one:
            /// let no client that pays for units choose its keys. A denied acquire that did not count leaves no id behind, so
            /// repeating it is a new attempt. One that counted stays denied until its key is free; a new attempt takes a new key.
            /// A peek with a key finds the entry, and returns the verdict that the repetition would.
            ///
            /// ```
            /// # use limiter_core::{Limiter, policy};
            /// # use limiter_testkit::ReferenceStore as MemoryStore;
            /// let search = Limiter::new("search", policy!("5/10s"), MemoryStore::new());
            /// for _ in 0..3 {
            ///     let decision = search.acquire("customer 7").idempotency_key(42_u128).now()?;
            ///     assert_eq!(decision.remaining(), 4);
            /// }
            /// # Ok::<(), limiter_core::Error>(())
            /// ```
            #[inline(always)]
            pub fn idempotency_key(mut self, key: impl Into<EntryId>) -> Self {
                self.call.id = Some(key.into());
                self
            }
        }
    };
}

builder! {
    /// An acquire with its options: a builder that is also a future.
    ///
    /// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`Decision`](crate::Decision).
    ///
    /// # Errors
    /// See the [guide](crate::request#which-errors-can-it-return).
    ///
    /// # Cancel safety
    /// See [`Limiter`].
    Acquire, Decision
}
costs!(Acquire);

impl<'a, S, B: AsRef<[u8]>> Acquire<'a, S, B> {
    /// Waits until the acquire fits, for at most `wait`.
    ///
    /// After a denial, the call waits exactly [`retry_after`](crate::Decision::retry_after) and tries again. If the acquire cannot
    /// fit in time, the denial is returned immediately. Concurrent waiters are served in no particular order. If the policy counts
    /// attempts, the call waits by peeks, which do not count, and then tries once. A call with a [caller-supplied time](Self::at) is
    /// tried once.
    ///
    /// The future sleeps by the [clock](crate::Clock) in front of the store, otherwise on tokio's timers.
    ///
    /// # Errors
    /// As for the acquire. Without either, the future returns [`Configuration`](crate::ErrorKind::Configuration) at the first poll,
    /// even if the acquire would fit. A wait of zero and a call with a caller-supplied time need neither.
    ///
    /// # Cancel safety
    /// A future dropped while it sleeps has consumed no unit.
    pub async fn within(self, wait: Duration) -> Result<Decision, Error>
    where
        S: WindowStore,
    {
        wait::until_it_fits(&self.call, wait, || ()).await
    }
}

builder! {
    /// A record with its options. Like an [`Acquire`], but no cost is too high.
    Record, Decision
}
costs!(Record);

builder! {
    /// A peek with its options. Like an [`Acquire`], but it changes nothing and may be dropped at any time.
    Peek, Decision
}
costs!(Peek);

builder! {
    /// A reading of the usage with its options. Like a [`Peek`], but it returns a [`Status`](crate::Status), and only the store's errors.
    ReadStatus, Status, Decision::into_status
}

impl<S> Limiter<S> {
    /// Takes one unit, or [`cost`](Acquire::cost) units, if they fit.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # let limiter = Limiter::new("search", policy!("5/10s"), limiter_testkit::ReferenceStore::new());
    /// let decision = limiter.acquire("customer 7").cost(2).now()?;
    /// assert!(decision.is_allowed());
    /// assert_eq!(decision.remaining(), 3);
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline(always)]
    pub fn acquire<K: Key>(&self, key: K) -> Acquire<'_, S, K::Bytes> {
        Acquire::new(Call::new(self, key.to_key(), Mode::Acquire))
    }

    /// Records one unit, or [`cost`](Record::cost) units, whether or not they fit. Use it to meter usage.
    ///
    /// A record that does not fit has no [receipt](crate::Decision::receipt), so it can be neither settled nor refunded. To correct
    /// records later, meter with a maximum that usage never reaches, such as [`MAX_COST`](crate::MAX_COST).
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # let limiter = Limiter::new("search", policy!("5/10s"), limiter_testkit::ReferenceStore::new());
    /// let decision = limiter.record("customer 7").cost(9).now()?;
    /// assert!(decision.is_allowed() && decision.receipt().is_none());
    /// assert_eq!(limiter.status("customer 7").now()?.used(), 5, "at most the maximum is reported");
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline(always)]
    pub fn record<K: Key>(&self, key: K) -> Record<'_, S, K::Bytes> {
        Record::new(Call::new(self, key.to_key(), Mode::Record))
    }

    /// Checks whether one unit, or [`cost`](Peek::cost) units, would fit. Consumes nothing.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # let limiter = Limiter::new("search", policy!("5/10s"), limiter_testkit::ReferenceStore::new());
    /// assert!(limiter.peek("customer 7").cost(5).now()?.is_allowed());
    /// assert_eq!(limiter.status("customer 7").now()?.used(), 0);
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline(always)]
    pub fn peek<K: Key>(&self, key: K) -> Peek<'_, S, K::Bytes> {
        Peek::new(Call::new(self, key.to_key(), Mode::Peek))
    }

    /// Reads the usage. Consumes nothing.
    ///
    /// Unlike [`peek`](Self::peek), it does not check whether more would fit, so its result is never a denial.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # let limiter = Limiter::new("search", policy!("5/10s"), limiter_testkit::ReferenceStore::new());
    /// let _ = limiter.acquire("customer 7").now()?;
    /// let status = limiter.status("customer 7").now()?;
    /// assert_eq!((status.used(), status.remaining()), (1, 4));
    /// # Ok::<(), limiter_core::Error>(())
    /// ```
    #[inline(always)]
    pub fn status<K: Key>(&self, key: K) -> ReadStatus<'_, S, K::Bytes> {
        let mut call = Call::new(self, key.to_key(), Mode::Peek);
        call.hints.is_status = true;
        ReadStatus::new(call)
    }
}
