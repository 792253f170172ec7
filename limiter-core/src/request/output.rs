//! What a request returns: a decision, a status, or a decision with a permit.

use std::task::{Context, Poll};

use super::call::{Call, Running};
use crate::decision::Decision;
use crate::error::Error;
use crate::store::{SyncStore, WindowStore};

/// What a request returns.
pub trait Output<'a, S>: Sized {
    fn of<B: AsRef<[u8]>>(
        call: &Call<'a, S, B>,
        decision: Result<Decision, Error>,
    ) -> Result<Self, Error>;

    #[inline]
    fn now<B: AsRef<[u8]>>(call: &Call<'a, S, B>) -> Result<Self, Error>
    where
        S: SyncStore,
    {
        Self::of(call, call.now())
    }

    #[inline]
    fn poll<B>(
        call: &Call<'a, S, B>,
        running: &mut Running<'a>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self, Error>>
    where
        S: WindowStore,
        B: AsRef<[u8]> + Clone + Send + Sync + 'a,
    {
        call.poll(running, context)
            .map(|decision| Self::of(call, decision))
    }
}

/// Never passes a decision on: that copies it, which costs a third of the time of a decision in memory.
impl<'a, S> Output<'a, S> for Decision {
    fn of<B>(_: &Call<'a, S, B>, decision: Result<Self, Error>) -> Result<Self, Error> {
        decision
    }

    #[inline(always)]
    fn now<B: AsRef<[u8]>>(call: &Call<'a, S, B>) -> Result<Self, Error>
    where
        S: SyncStore,
    {
        call.now()
    }

    #[inline(always)]
    fn poll<B>(
        call: &Call<'a, S, B>,
        running: &mut Running<'a>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self, Error>>
    where
        S: WindowStore,
        B: AsRef<[u8]> + Clone + Send + Sync + 'a,
    {
        call.poll(running, context)
    }
}

impl<S> Output<'_, S> for crate::status::Status {
    #[inline]
    fn of<B>(_: &Call<'_, S, B>, decision: Result<Decision, Error>) -> Result<Self, Error> {
        decision.map(Decision::into_status)
    }
}
