//! Marker types for the kind of a [`Request`](super::Request). They are private, so nobody else can implement the traits.

use crate::op::Mode;

/// The kind of a request.
pub trait Verb: Unpin + Send + Sync + 'static {
    const MODE: Mode;
    const MAY_WAIT: bool = false;
    const IS_STATUS: bool = false;
}

/// The kind of a request that takes a cost and returns a decision: all but [`Status`].
pub trait Costs: Verb {}

/// The kind of a request that never sleeps: all but [`AcquireWithin`].
pub trait NeverWaits: Verb {}

/// The kind of a request that may be for a permit.
pub trait Acquires: Costs {}

#[derive(Clone, Copy, Debug)]
pub enum Acquire {}

#[derive(Clone, Copy, Debug)]
pub enum AcquireWithin {}

#[derive(Clone, Copy, Debug)]
pub enum Peek {}

#[derive(Clone, Copy, Debug)]
pub enum Record {}

#[derive(Clone, Copy, Debug)]
pub enum Status {}

impl Verb for Acquire {
    const MODE: Mode = Mode::Acquire;
}

impl Verb for AcquireWithin {
    const MODE: Mode = Mode::Acquire;
    const MAY_WAIT: bool = true;
}

impl Verb for Peek {
    const MODE: Mode = Mode::Peek;
}

impl Verb for Record {
    const MODE: Mode = Mode::Record;
}

impl Verb for Status {
    const MODE: Mode = Mode::Peek;
    const IS_STATUS: bool = true;
}

impl Costs for Acquire {}
impl Costs for AcquireWithin {}
impl Costs for Peek {}
impl Costs for Record {}

impl NeverWaits for Acquire {}
impl NeverWaits for Peek {}
impl NeverWaits for Record {}
impl NeverWaits for Status {}

impl Acquires for Acquire {}
impl Acquires for AcquireWithin {}
