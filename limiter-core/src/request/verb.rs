//! The verbs of a [`Request`](super::Request), as types.

use crate::op::Mode;

/// A verb of a limiter. Closed: there are the four of this module.
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
    /// [`Limiter::acquire`](crate::Limiter::acquire).
    Acquire: Acquire;
    /// [`Limiter::peek`](crate::Limiter::peek).
    Peek: Peek;
    /// [`Limiter::record`](crate::Limiter::record).
    Record: Record;
    /// [`Limiter::status`](crate::Limiter::status).
    Status: Peek;
}

/// A verb that takes a cost and answers with a [`Decision`](crate::Decision).
pub trait Costs: Verb {}

impl Costs for Acquire {}
impl Costs for Peek {}
impl Costs for Record {}
