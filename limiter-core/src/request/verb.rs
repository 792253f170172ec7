//! Marker types for the kind of a [`Request`](super::Request). They are private, so no other crate can implement the traits.

use std::task::{Context, Poll};

use super::call::{Call, Running};
use super::permit::PermitDecision;
use crate::decision::Decision;
use crate::error::Error;
use crate::op::Mode;
use crate::store::{SyncStore, WindowStore};

/// The kind of a request.
pub trait Verb: Unpin + Send + Sync + 'static {
    const MODE: Mode;
    const IS_STATUS: bool = false;
    const NEEDS_RECEIPT: bool = false;
    type Output<'a, S: 'a>: Output<'a, S>;
}

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

/// The kind of a request that takes a cost: all but [`Status`].
pub trait Costs: Verb {}

/// The kind of an acquire, with a permit or without.
pub trait Acquires: Costs {}

#[derive(Clone, Copy, Debug)]
pub enum Acquire {}

/// An acquire for a permit.
#[derive(Clone, Copy, Debug)]
pub enum Permit {}

#[derive(Clone, Copy, Debug)]
pub enum Peek {}

#[derive(Clone, Copy, Debug)]
pub enum Record {}

#[derive(Clone, Copy, Debug)]
pub enum Status {}

impl Verb for Acquire {
    const MODE: Mode = Mode::Acquire;
    type Output<'a, S: 'a> = Decision;
}

impl Verb for Permit {
    const MODE: Mode = Mode::Acquire;
    const NEEDS_RECEIPT: bool = true;
    type Output<'a, S: 'a> = PermitDecision<'a, S>;
}

impl Verb for Peek {
    const MODE: Mode = Mode::Peek;
    type Output<'a, S: 'a> = Decision;
}

impl Verb for Record {
    const MODE: Mode = Mode::Record;
    type Output<'a, S: 'a> = Decision;
}

impl Verb for Status {
    const MODE: Mode = Mode::Peek;
    const IS_STATUS: bool = true;
    type Output<'a, S: 'a> = crate::status::Status;
}

impl Costs for Acquire {}
impl Costs for Permit {}
impl Costs for Peek {}
impl Costs for Record {}

impl Acquires for Acquire {}
impl Acquires for Permit {}
