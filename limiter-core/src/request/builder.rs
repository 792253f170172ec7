//! What the builders of acquires, records, peeks and statuses have in common.

/// Defines a builder that is also a future: its options, `now`, and the first poll, which decides in place if the store can.
///
/// A macro, because a function that passes a decision on copies it, which costs a third of the time of a decision in memory.
macro_rules! builder {
    ($(#[$doc:meta])* $name:ident, $output:ty $(, $convert:expr)?) => {
        $(#[$doc])*
        #[must_use = "a request does nothing until it is awaited, or `now` is called"]
        pub struct $name<'a, S, B> {
            pub(super) call: Call<'a, S, B>,
            /// The store's boxed future, once the first poll has started it.
            running: Running<'a>,
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

        impl<S: SyncStore, B: AsRef<[u8]>> $name<'_, S, B> {
            /// Makes the call on a synchronous store, without a future.
            ///
            /// # Errors
            /// See the [guide](crate::request#which-errors-can-it-return). A call with a cost of 1 never fails.
            #[inline(always)]
            pub fn now(self) -> Result<$output, Error> {
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
pub(super) use builder;

/// Defines the options of a builder whose call has a cost.
macro_rules! costs {
    ($name:ident) => {
        impl<S, B> $name<'_, S, B> {
            /// Sets the cost in units, which fit all together or not at all. Default: 1.
            ///
            /// An acquire or a peek accepts 1 to the policy's smallest maximum. A record accepts any cost of at least 1.
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
            /// A peek ignores the key.
            #[inline(always)]
            pub fn idempotency_key(mut self, key: impl Into<IdempotencyKey>) -> Self {
                self.call.id = Some(key.into().0);
                self
            }
        }
    };
}
pub(super) use costs;
