//! Marker types for the kind of a [`Request`](super::Request).

use crate::op::Mode;

/// The kind of a [`Request`](super::Request). Sealed: only the types of this module implement it.
pub trait Verb: sealed::Sealed {
    #[doc(hidden)]
    const MODE: Mode;
    #[doc(hidden)]
    const MAY_WAIT: bool = false;
    #[doc(hidden)]
    const IS_STATUS: bool = false;
}

mod sealed {
    pub trait Sealed: Unpin + Send + Sync + 'static {}
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $verb:ident: $mode:ident $(, $flag:ident)?;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $verb {}

        impl sealed::Sealed for $verb {}

        impl Verb for $verb {
            const MODE: Mode = Mode::$mode;
            $(const $flag: bool = true;)?
        }
    )*};
}

verbs! {
    /// The marker of [`Limiter::acquire`](crate::Limiter::acquire).
    Acquire: Acquire;
    /// The marker of [`Request::within`](super::Request::within).
    AcquireWithin: Acquire, MAY_WAIT;
    /// The marker of [`Limiter::peek`](crate::Limiter::peek).
    Peek: Peek;
    /// The marker of [`Limiter::record`](crate::Limiter::record).
    Record: Record;
    /// The marker of [`Limiter::status`](crate::Limiter::status).
    Status: Peek, IS_STATUS;
}

/// The kind of a request that takes a cost and returns a [`Decision`](crate::Decision): all but [`Status`].
pub trait Costs: Verb {}

impl Costs for Acquire {}
impl Costs for AcquireWithin {}
impl Costs for Peek {}
impl Costs for Record {}

/// The kind of a request that never sleeps: all but [`AcquireWithin`].
pub trait NeverWaits: Costs {}

impl NeverWaits for Acquire {}
impl NeverWaits for Peek {}
impl NeverWaits for Record {}
