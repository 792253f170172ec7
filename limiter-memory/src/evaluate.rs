//! Applies an operation to a log.
//!
//! The evaluation exists twice. [`fast`] handles the common operations in few steps, so that its facts stay in registers: one to
//! four exact limits, no idempotency key, the limiter's policy, and an entry that the log's form can hold. [`general`] handles
//! every operation. The conformance suite finds where they differ.

mod answer;
mod counted;
mod fast;
pub(crate) mod general;

use std::ops::DerefMut;

use limiter_core::Timestamp;
use limiter_core::store::Op;

use self::fast::try_fast;
use crate::log::header::Narrow;
use crate::log::{LogForm, LogParts, Other, with_entries};

pub(crate) use self::answer::Answer;

/// Applies an operation to a locked log, unlocks it, and returns the result.
///
/// Inlines only the path of a hot key: one limit on an inline log or on a ring of narrow entries.
#[inline(always)]
pub(crate) fn apply<A: Answer, G: DerefMut<Target: LogParts>>(
    mut log: G,
    op: &Op<'_>,
    now: Timestamp,
) -> A {
    match op.policy.limits().len() {
        1 => {}
        2 => return apply_limits::<A, G, 2>(log, *op, now),
        3 => return apply_limits::<A, G, 3>(log, *op, now),
        4 => return apply_limits::<A, G, 4>(log, *op, now),
        _ => return apply_general(log, *op, now),
    }
    let (entries, oldest) = log.parts();
    match entries {
        LogForm::Ring(ring) if ring.header.is::<Narrow>() => {
            let mut entries = ring.view::<Narrow>(oldest);
            if !entries.has_no_capacity() {
                try_fast!(1, &mut entries, op, now, drop(log));
            }
        }
        LogForm::Other(Other::Inline(inline)) => {
            try_fast!(1, &mut inline.view(), op, now, drop(log));
        }
        LogForm::Other(Other::Sparse(_)) => return apply_sparse(log, *op, now),
        _ => return apply_limits::<A, G, 1>(log, *op, now),
    }
    apply_general(log, *op, now)
}

#[inline(never)]
fn apply_limits<A: Answer, G: DerefMut<Target: LogParts>, const LIMITS: usize>(
    mut log: G,
    op: Op<'_>,
    now: Timestamp,
) -> A {
    with_entries!(log.parts().0, entries => try_fast!(LIMITS, entries, &op, now, drop(log)), _ => {});
    apply_general(log, op, now)
}

#[inline(never)]
fn apply_sparse<A: Answer, G: DerefMut<Target: LogParts>>(
    mut log: G,
    op: Op<'_>,
    now: Timestamp,
) -> A {
    if let LogForm::Other(Other::Sparse(sparse)) = log.parts().0
        && let Some(limits) = op.policy.limits().first_chunk()
        && let Some(facts) = sparse.apply_common(&op, now)
    {
        drop(log);
        return A::from_fast(&op, limits, facts);
    }
    apply_general(log, op, now)
}

#[inline(never)]
fn apply_general<A: Answer, G: DerefMut<Target: LogParts>>(
    mut log: G,
    op: Op<'_>,
    now: Timestamp,
) -> A {
    let (entries, oldest) = log.parts();
    let facts = general::apply(entries, op, now);
    if let Some(oldest) = oldest {
        *oldest = entries.no_oldest();
    }
    drop(log);
    A::from_facts(op, facts)
}
