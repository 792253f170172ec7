//! Marker types for the kind of a [`Request`](super::Request). They are private, so no other crate can implement the traits.

use super::output::Output;
use super::permit::PermitDecision;
use crate::decision::Decision;
use crate::store::op::Mode;

/// The kind of a request.
pub trait Verb: Unpin + Send + Sync + 'static {
    const MODE: Mode;
    const IS_STATUS: bool = false;
    const NEEDS_RECEIPT: bool = false;
    type Output<'a, S: 'a>: Output<'a, S>;
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
