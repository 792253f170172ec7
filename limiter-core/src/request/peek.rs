//! The builders for calls that change nothing: peeks and statuses.

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
use crate::status::Status;
use crate::store::op::{At, IdempotencyKey, Mode};
use crate::store::{SyncStore, WindowStore};

builder! {
    /// A peek with its options: a builder that is also a future.
    ///
    /// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`Decision`](crate::Decision).
    ///
    /// # Errors
    /// As for an [`Acquire`](super::Acquire).
    ///
    /// # Cancel safety
    /// A peek changes nothing, and may be dropped at any time.
    Peek, Decision
}
costs!(Peek);

builder! {
    /// A reading of the usage with its options: a builder that is also a future.
    ///
    /// `.await` it, or call [`now`](Self::now) on a synchronous store. Both return a [`Status`](crate::Status).
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// A status changes nothing, and may be dropped at any time.
    ReadStatus, Status, Decision::into_status
}

impl<S> Limiter<S> {
    /// Checks whether one unit, or [`cost`](Peek::cost) units, would fit. Consumes nothing.
    #[inline(always)]
    pub fn peek<K: Key>(&self, key: K) -> Peek<'_, S, K::Bytes> {
        Peek::new(Call::new(self, key.to_key(), Mode::Peek))
    }

    /// Reads the usage. Consumes nothing.
    ///
    /// Unlike [`peek`](Self::peek), it does not check whether more would fit, so its result is never a denial.
    #[inline(always)]
    pub fn status<K: Key>(&self, key: K) -> ReadStatus<'_, S, K::Bytes> {
        let mut call = Call::new(self, key.to_key(), Mode::Peek);
        call.hints.is_status = true;
        ReadStatus::new(call)
    }
}
