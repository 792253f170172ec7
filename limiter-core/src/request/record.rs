//! The builder for records.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::builder::{builder, costs};
use super::call::{Call, Running};
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::policy::time::Timestamp;
use crate::store::op::{At, IdempotencyKey, Mode};
use crate::store::{SyncStore, WindowStore};

builder! {
    /// A record with its options: a builder that is also a future.
    ///
    /// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`Decision`](crate::Decision).
    ///
    /// # Errors
    /// As for an [`Acquire`](super::Acquire), but no cost is too high.
    ///
    /// # Cancel safety
    /// See [`Limiter`].
    Record, Decision
}
costs!(Record);

impl<S> Limiter<S> {
    /// Records one unit, or [`cost`](Record::cost) units, whether or not they fit. Use it to meter usage.
    ///
    /// A record that does not fit has no [receipt](crate::Decision::receipt), so it can be neither settled nor refunded. To correct
    /// records later, meter with a maximum that usage never reaches, such as [`MAX_COST`](crate::MAX_COST).
    #[inline(always)]
    pub fn record<K: Key>(&self, key: K) -> Record<'_, S, K::Bytes> {
        Record::new(Call::new(self, key.to_key(), Mode::Record))
    }
}
