//! The results that an operation can write.

use limiter_core::internal::{self, SizedFacts};
use limiter_core::store::{Facts, Op, decide};
use limiter_core::{Decision, Error, Limit};

/// A result, written where the caller wants it. Moving a decision would cost more than making it.
pub(crate) trait Answer {
    /// Returns the result for facts on `LIMITS` limits.
    fn from_fast<const LIMITS: usize>(
        op: &Op<'_>,
        limits: &[Limit; LIMITS],
        facts: SizedFacts<LIMITS>,
    ) -> Self;

    /// Returns the answer for any facts. The operation comes by value: letting a pointer to it escape would force it out of
    /// registers.
    fn from_facts(op: Op<'_>, facts: Facts) -> Self;
}

impl Answer for Facts {
    #[inline(always)]
    fn from_fast<const LIMITS: usize>(
        _: &Op<'_>,
        _: &[Limit; LIMITS],
        facts: SizedFacts<LIMITS>,
    ) -> Self {
        facts.into()
    }

    #[inline(always)]
    fn from_facts(_: Op<'_>, facts: Facts) -> Self {
        facts
    }
}

/// Implements [`Answer`] for a type that wraps a decision.
macro_rules! wrapped_decision {
    ($answer:ty, $wrap:expr) => {
        impl Answer for $answer {
            #[inline(always)]
            fn from_fast<const LIMITS: usize>(
                op: &Op<'_>,
                limits: &[Limit; LIMITS],
                facts: SizedFacts<LIMITS>,
            ) -> Self {
                $wrap(internal::decide_sized(op, limits, facts))
            }

            #[inline(never)]
            fn from_facts(op: Op<'_>, facts: Facts) -> Self {
                debug_assert!(facts.verify(&op).is_ok(), "{facts:?} contradict {op:?}");
                $wrap(decide(&op, facts))
            }
        }
    };
}

wrapped_decision!(Result<Decision, Error>, Ok);
wrapped_decision!(Option<Result<Decision, Error>>, |decision| Some(Ok(
    decision
)));
