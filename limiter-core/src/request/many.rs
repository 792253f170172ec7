//! The builder for a batch of acquires.

use std::collections::HashMap;
use std::fmt;

use futures_util::{StreamExt, stream};

use super::call::Call;
use crate::clock::BoxFuture;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::op::{At, Mode};
use crate::policy::Policy;
use crate::store::{SyncStore, WindowStore};
use crate::time::Timestamp;

/// The most keys of a batch with a call under way: enough to fill a connection. With many more, calls would time out in its queue.
const WIDTH: usize = 256;

/// How many calls of a batch on a synchronous store are prepared together: few enough that their logs stay in the cache.
const PREFETCH: usize = 64;

/// A batch of acquires with its options.
///
/// `.await` it, or call [`now`](Self::now) on a synchronous store. It returns one result for each acquire, in the order given.
/// The decisions are those of the acquires one by one, in that order.
///
/// The calls on different keys run concurrently, up to 256 at a time, so a store over a network pipelines them. The calls on one
/// key run one after another. The batch is not atomic: other callers' operations may come between its calls, and a call that
/// fails does not affect the others.
///
/// # Errors
/// Each result may be an error of [`Request`](crate::Request).
///
/// # Cancel safety
/// Each acquire is cancel-safe like a [`Request`](crate::Request). A batch that is dropped may have made any number of its calls.
#[must_use = "a batch does nothing until it is awaited, or `now` is called"]
pub struct AcquireMany<'a, S, B> {
    calls: Vec<Call<'a, S, B>>,
}

impl<S> Limiter<S> {
    /// Takes the units of many keys: for each `(key, cost)`, that many units if they fit.
    ///
    /// ```
    /// # use limiter_core::{Limiter, policy};
    /// # use limiter_testkit::ReferenceStore as MemoryStore;
    /// let limiter = Limiter::new("bytes", policy!("1000/1s"), MemoryStore::new());
    /// let results = limiter.acquire_many([("a", 600), ("b", 1), ("a", 600)]).now();
    /// let allowed: Vec<bool> = results.into_iter().map(|result| result.unwrap().allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// ```
    pub fn acquire_many<K: Key>(&self, batch: impl IntoIterator<Item = (K, u64)>) -> AcquireMany<'_, S, K::Bytes> {
        let calls = batch.into_iter().map(|(key, cost)| {
            let mut call = Call::new(self, key.to_key(), Mode::Acquire);
            call.cost = cost;
            call
        });
        AcquireMany { calls: calls.collect() }
    }
}

impl<'a, S, B> AcquireMany<'a, S, B> {
    /// Sets the policy for all calls of the batch. Default: the limiter's policy. See [`Request::policy`](crate::Request::policy).
    pub fn policy(mut self, policy: &'a Policy) -> Self {
        for call in &mut self.calls {
            call.policy = Some(policy);
        }
        self
    }

    /// Sets a caller-supplied time for all calls of the batch. Default: the store's clock. See
    /// [`Request::at`](crate::Request::at).
    pub fn at(mut self, at: Timestamp) -> Self {
        for call in &mut self.calls {
            call.at = At::Given(at);
        }
        self
    }

    /// Makes the calls on a synchronous store, without a future. Returns their results in the order given.
    pub fn now(self) -> Vec<Result<Decision, Error>>
    where
        S: SyncStore,
        B: AsRef<[u8]>,
    {
        let mut results = Vec::with_capacity(self.calls.len());
        for calls in self.calls.chunks(PREFETCH) {
            if let Some(call) = calls.first() {
                call.limiter.store.prefetch(&mut calls.iter().map(|call| call.op().log));
            }
            results.extend(calls.iter().map(Call::decide_now));
        }
        results
    }
}

impl<'a, S: WindowStore, B: AsRef<[u8]> + Send + Sync + 'a> IntoFuture for AcquireMany<'a, S, B> {
    type Output = Vec<Result<Decision, Error>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(decide_all(self.calls))
    }
}

/// Makes the calls: those on one key in order, those on different keys concurrently.
async fn decide_all<S, B>(calls: Vec<Call<'_, S, B>>) -> Vec<Result<Decision, Error>>
where
    S: WindowStore,
    B: AsRef<[u8]> + Send + Sync,
{
    let mut by_key: HashMap<_, Vec<_>> = HashMap::new();
    for (place, call) in calls.iter().enumerate() {
        by_key.entry(call.key.as_ref()).or_default().push(place);
    }
    // The keys begin in the order of their first calls.
    let mut by_key: Vec<Vec<usize>> = by_key.into_values().collect();
    by_key.sort_unstable();
    let calls = &calls[..];
    let futures = by_key.into_iter().map(|places| async move {
        let mut results = Vec::with_capacity(places.len());
        for place in places {
            results.push((place, calls[place].decide().await));
        }
        results
    });
    let mut done: Vec<_> = stream::iter(futures).buffer_unordered(WIDTH).concat().await;
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

impl<S, B> fmt::Debug for AcquireMany<'_, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireMany").field("calls", &self.calls.len()).finish_non_exhaustive()
    }
}
