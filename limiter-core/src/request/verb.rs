//! Marker types for the kind of a [`Request`](super::Request). They are private, so no other crate can implement the traits.

use std::task::Poll;

use super::call::Call;
use super::permit::PermitDecision;
use crate::decision::Decision;
use crate::error::Error;
use crate::op::Mode;

/// The kind of a request.
pub trait Verb: Unpin + Send + Sync + 'static {
    const MODE: Mode;
    const IS_STATUS: bool = false;
    type Output<'a, S: 'a>: Output<'a, S>;
}

/// What a request returns.
pub trait Output<'a, S>: Sized {
    /// Takes a function: passing a decision on copies it, which costs a fifth of the time of a decision in memory.
    fn of<B: AsRef<[u8]>>(
        call: &Call<'a, S, B>,
        decide: impl FnOnce() -> Result<Decision, Error>,
    ) -> Result<Self, Error>;

    #[inline(always)]
    fn poll_of<B: AsRef<[u8]>>(
        call: &Call<'a, S, B>,
        poll: impl FnOnce() -> Poll<Result<Decision, Error>>,
    ) -> Poll<Result<Self, Error>> {
        poll().map(|decision| Self::of(call, || decision))
    }
}

impl<S> Output<'_, S> for Decision {
    #[inline(always)]
    fn of<B>(_: &Call<'_, S, B>, decide: impl FnOnce() -> Result<Self, Error>) -> Result<Self, Error> {
        decide()
    }

    #[inline(always)]
    fn poll_of<B>(_: &Call<'_, S, B>, poll: impl FnOnce() -> Poll<Result<Self, Error>>) -> Poll<Result<Self, Error>> {
        poll()
    }
}

impl<S> Output<'_, S> for crate::status::Status {
    #[inline]
    fn of<B>(_: &Call<'_, S, B>, decide: impl FnOnce() -> Result<Decision, Error>) -> Result<Self, Error> {
        decide().map(Decision::into_status)
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
