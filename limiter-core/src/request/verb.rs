//! Marker types for the kind of a [`Request`](super::Request).

use crate::op::Mode;

/// The kind of a [`Request`](super::Request). Sealed: the four types of this module implement it.
pub trait Verb: sealed::Sealed {
    #[doc(hidden)]
    const MODE: Mode;
}

mod sealed {
    pub trait Sealed: Unpin + Send + Sync + 'static {}
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $verb:ident: $mode:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $verb {}

        impl sealed::Sealed for $verb {}

        impl Verb for $verb {
            const MODE: Mode = Mode::$mode;
        }
    )*};
}

verbs! {
    /// The marker of [`Limiter::acquire`](crate::Limiter::acquire).
    Acquire: Acquire;
    /// The marker of [`Limiter::peek`](crate::Limiter::peek).
    Peek: Peek;
    /// The marker of [`Limiter::record`](crate::Limiter::record).
    Record: Record;
    /// The marker of [`Limiter::status`](crate::Limiter::status).
    Status: Peek;
}

/// The kind of a request that takes a cost and returns a [`Decision`](crate::Decision): all but [`Status`].
pub trait Costs: Verb {}

impl Costs for Acquire {}
impl Costs for Peek {}
impl Costs for Record {}
