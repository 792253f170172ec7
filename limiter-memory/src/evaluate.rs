//! Applies an operation to a log.
//!
//! The evaluation exists twice. [`fast`] handles the common operations in few steps, so that its facts stay in registers: one to
//! four exact limits, no idempotency key, the limiter's policy, and an entry that the log's form can hold. [`general`] handles
//! every operation. A property test below shows that they agree.

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

#[cfg(test)]
mod tests {
    use limiter_core::internal::SizedFacts;
    use limiter_core::store::{Facts, Mode};
    use limiter_core::{Counting, Limit, Policy, Window};
    use proptest::prelude::*;

    use super::*;
    use crate::placement::key::{Key, KeyedLog};
    use crate::placement::table::BucketLog;

    /// Facts, and which version found them.
    struct Traced {
        facts: Facts,
        fast: bool,
    }

    impl Answer for Traced {
        fn from_fast<const LIMITS: usize>(
            _: &Op<'_>,
            _: &[Limit; LIMITS],
            facts: SizedFacts<LIMITS>,
        ) -> Self {
            Self {
                facts: facts.into(),
                fast: true,
            }
        }

        fn from_facts(_: Op<'_>, facts: Facts) -> Self {
            Self { facts, fast: false }
        }
    }

    fn entries_of(log: &mut LogForm) -> Vec<(u32, Timestamp, u64)> {
        with_entries!(log, e => (0..e.len()).map(|i| (e.number(i), e.at(i), e.cost_from(i))).collect(), _ => vec![])
    }

    /// Asserts that all specified fields are equal.
    fn assert_agree(answer: &Facts, general: &Facts, op: &Op<'_>) {
        let fields = |facts: &Facts| {
            (
                facts.admitted,
                facts.refundable,
                facts.outcome,
                facts.log.now,
                facts.log.newest,
            )
        };
        assert_eq!(fields(answer), fields(general));
        let pairs = answer
            .log
            .usage
            .iter()
            .zip(general.log.usage.iter())
            .zip(op.policy.limits());
        for ((fast, general), limit) in pairs {
            assert_eq!(fast.used, general.used);
            assert!(
                fast.used == 0 || fast.oldest == general.oldest,
                "{fast:?} {general:?}"
            );
            let denies =
                !answer.admitted && op.mode != Mode::Record && fast.used + op.cost > limit.max();
            assert!(
                !denies || fast.blocker == general.blocker,
                "{fast:?} {general:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn fast_and_general_agree(
            limits in prop::collection::vec((1..40_u64, 1..200_u64), 1..=5),
            unit in prop::sample::select(&[1_u64, 60_000_000][..]),
            [attempts, records] in any::<[bool; 2]>(),
            steps in prop::collection::vec((0..12_u64, 0..6_u64, prop::sample::select(&[1_u64, 1, 1, 2, 7][..])), 1..150),
        ) {
            let limits = limits.iter().map(|(max, micros)| {
                Limit::with_window(max + 7, Window::from_micros(micros * unit).unwrap()).unwrap()
            });
            let counting = if attempts { Counting::Attempts } else { Counting::Admitted };
            let policy = Policy::new(limits).unwrap().with_counting(counting);
            let (mut log, mut other) = (LogForm::new(7), LogForm::new(7));
            let mut bucket = BucketLog { oldest: log.no_oldest(), keyed: KeyedLog { key: Key::new(0, b""), log } };
            let (mut at, mut fast, count) = (1 << 50, 0, steps.len());
            for (gap, mode, cost) in steps {
                at += gap * unit;
                let now = Timestamp::from_micros(at).unwrap();
                let mode = match mode { 0 => Mode::Peek, 1 if records => Mode::Record, _ => Mode::Acquire };
                let op = Op::new(mode, "key", &policy).with_cost(cost).at(now);
                let answer: Traced = apply(&mut bucket, &op, now);
                assert_agree(&answer.facts, &general::apply(&mut other, op, now), &op);
                prop_assert_eq!(entries_of(&mut bucket.keyed.log), entries_of(&mut other));
                fast += usize::from(answer.fast);
            }
            // A conversion takes the general version, and so does usage above a maximum.
            let common = policy.limits().len() <= 4 && !attempts && !records;
            prop_assert!(!common || fast + 12 > count, "{} of {} are fast", fast, count);
        }
    }
}
