//! Applies an operation to a log.
//!
//! [`evaluate`] is the rule of a decision. It is compiled for one to four exact limits, so that their facts stay in registers, and
//! for any number of limits of any kind. [`apply`] inlines only the path of a hot key.

use std::hint::select_unpredictable;
use std::ops::DerefMut;

use limiter_core::internal::{self, SizedFacts};
use limiter_core::store::{
    Change, Changed, Entry, EntryId, Facts, Mode, Op, Outcome, Settlement, SettlementFacts, Usage,
    decide,
};
use limiter_core::{Decision, Error, Limit, MAX_LIMITS, Policy, Timestamp};

use crate::log::ring::Narrow;
use crate::log::view::{Encoding, View};
use crate::log::{LogForm, LogParts, Other, Parts, with_entries};

/// What came of an evaluation. Unless it is facts, nothing has changed.
enum Evaluated<const LIMITS: usize> {
    Facts(SizedFacts<LIMITS>),
    /// The log needs another form to take the entry. This many of the first entries have expired.
    Convert(usize),
    /// Usage exceeds a maximum, which only a general evaluation covers.
    General,
}

/// Applies an operation to a locked log of a common form, unlocks it, and returns the decision. Leaves the others to `rest`.
#[inline(always)]
pub(crate) fn apply<R, G: DerefMut<Target: LogParts>>(
    mut log: G,
    op: &Op<'_>,
    now: Timestamp,
    wrap: impl Fn(Result<Decision, Error>) -> R,
    rest: impl FnOnce(G) -> R,
) -> R {
    // Each form returns separately: facts merged at one return would be written to memory.
    if let Some(limits) = common_limits::<1>(op) {
        let (form, oldest) = log.parts();
        match form {
            LogForm::Ring(ring) if ring.header.is::<Narrow>() => {
                let entries = ring.view::<Narrow>(oldest);
                if let Evaluated::Facts(facts) = evaluate::<1, false>(limits, entries, op, now) {
                    return unlock_and_decide(log, op, limits, facts, wrap);
                }
            }
            LogForm::Other(Other::Inline(inline)) => {
                let entries = inline.view();
                if let Evaluated::Facts(facts) = evaluate::<1, false>(limits, entries, op, now) {
                    return unlock_and_decide(log, op, limits, facts, wrap);
                }
            }
            _ => {}
        }
    }
    rest(log)
}

/// Applies an operation that [`apply`] did not.
pub(crate) fn apply_rest(log: Parts<'_>, op: &Op<'_>, now: Timestamp) -> Result<Decision, Error> {
    match op.policy.limits().len() {
        1 => apply_limits::<1>(log, op, now),
        2 => apply_limits::<2>(log, op, now),
        3 => apply_limits::<3>(log, op, now),
        4 => apply_limits::<4>(log, op, now),
        _ => apply_general(log, op, now),
    }
}

/// Applies an operation with this number of limits.
#[inline(never)]
fn apply_limits<const LIMITS: usize>(
    (log, oldest): Parts<'_>,
    op: &Op<'_>,
    now: Timestamp,
) -> Result<Decision, Error> {
    if let Some(limits) = common_limits::<LIMITS>(op) {
        with_entries!(log, entries => {
            if let Evaluated::Facts(facts) = evaluate::<LIMITS, false>(limits, entries, op, now) {
                return unlock_and_decide((), op, limits, facts, |decision| decision);
            }
        }, _ => {});
    }
    apply_general((log, oldest), op, now)
}

#[inline(never)]
fn apply_general(log: Parts<'_>, op: &Op<'_>, now: Timestamp) -> Result<Decision, Error> {
    let facts = apply_any(log, op, now);
    debug_assert!(facts.verify(op).is_ok(), "{facts:?} contradict {op:?}");
    Ok(decide(op, facts))
}

/// Returns the limits of a common operation: with the limiter's policy of `LIMITS` exact limits, and without an id.
#[inline(always)]
fn common_limits<'a, const LIMITS: usize>(op: &Op<'a>) -> Option<&'a [Limit; LIMITS]> {
    let limits = op.policy.limits_array()?;
    (op.id.is_none() && op.limiter_policy.is_none()).then_some(limits)
}

/// Unlocks the log, if `log` is its lock, and returns the decision. Each outcome has its own code: the facts of both, merged, would be
/// written to memory.
#[inline(always)]
fn unlock_and_decide<G, R, const LIMITS: usize>(
    log: G,
    op: &Op<'_>,
    limits: &[Limit; LIMITS],
    mut facts: SizedFacts<LIMITS>,
    wrap: impl Fn(Result<Decision, Error>) -> R,
) -> R {
    drop(log);
    if let Outcome::Nothing = facts.outcome {
        facts.outcome = Outcome::Nothing;
        return wrap(Ok(internal::decide_sized(op, limits, facts)));
    }
    wrap(Ok(internal::decide_sized(op, limits, facts)))
}

/// Applies any operation to any log.
#[inline(never)]
pub(crate) fn apply_any((form, oldest): Parts<'_>, op: &Op<'_>, now: Timestamp) -> Facts {
    // A log of another form holds no id to find.
    if op.id.is_some() && op.mode != Mode::Peek {
        form.make_sparse();
    }
    let limits = op.policy.limits();
    let facts = loop {
        let expired = with_entries!(form, entries => {
            match evaluate::<MAX_LIMITS, true>(limits, entries, op, now) {
                Evaluated::Facts(facts) => break facts.of_first(limits.len()),
                Evaluated::Convert(expired) => expired,
                Evaluated::General => 0,
            }
        }, sparse => break sparse.apply(op, now));
        form.convert_for(op, expired);
    };
    if let Some(oldest) = oldest {
        *oldest = form.no_oldest();
    }
    facts
}

/// Sets the cost of the entry that a receipt names, or removes the entry.
pub(crate) fn settle(
    log: &mut LogForm,
    settlement: &Settlement<'_>,
    now: Timestamp,
) -> SettlementFacts {
    let receipt = &settlement.receipt;
    let limits = settlement.policy.limits();
    let unchanged = with_entries!(log, entries => {
        let number = u64::try_from(receipt.entry().as_u128()).ok();
        let number = number.filter(|_| !receipt.has_expired(entries.clamp(now)));
        let found = number.and_then(|number| entries.find(number)).filter(|&i| entries.at(i) == receipt.at());
        let changed = found.map(|i| Changed {
            cost_before: entries.cost_from(i) - entries.cost_from(i + 1),
            entry: Entry { id: receipt.entry(), at: receipt.at() },
        });
        let mut peek = Op::new(Mode::Peek, settlement.log.key, settlement.policy);
        peek.at = settlement.at;
        // A receipt without an entry must not cost memory.
        match changed {
            Some(changed) if settlement.change != Change::Cost(changed.cost_before) => None,
            _ => match evaluate::<MAX_LIMITS, true>(limits, entries, &peek, now) {
                Evaluated::Facts(facts) => Some((changed, facts)),
                Evaluated::Convert(_) | Evaluated::General => None,
            },
        }
    }, _ => None);
    match unchanged {
        None => log.make_sparse().settle(settlement, now),
        Some((changed, facts)) => SettlementFacts {
            changed,
            log: facts.of_first(limits.len()).log,
        },
    }
}

/// Applies an operation to a compact log: counts, appends if it should, and returns the facts.
///
/// The operation does not append an id. It is a [common](common_limits) one, or the evaluation is `GENERAL`, and it has these limits
/// or fewer.
#[inline(always)]
fn evaluate<const LIMITS: usize, const GENERAL: bool>(
    limits: &[Limit],
    mut entries: View<'_, impl Encoding>,
    op: &Op<'_>,
    clock: Timestamp,
) -> Evaluated<LIMITS> {
    if entries.has_no_capacity() {
        return Evaluated::Convert(0);
    }
    let now = entries.clamp(clock);
    // Count: the first entry in each window, and the total cost from it on.
    let mut admitted = true;
    let mut starts = [0; LIMITS];
    let mut usage = [Usage::default(); LIMITS];
    for (i, limit) in limits.iter().enumerate() {
        let (start, oldest) = entries.window_start(i, limit.window(), now);
        starts[i] = start;
        usage[i].used = entries.cost_from(start);
        // Whether anything counts cannot be predicted for a key that comes now and then.
        usage[i].oldest = select_unpredictable(usage[i].used > 0, oldest, now);
        admitted &= usage[i].used + op.cost <= limit.max();
    }
    // After the loop, so that the compiler knows that nothing changes within it.
    let oldest = usage.iter().map(|usage| usage.oldest);
    entries.remember_starts(starts.iter().copied().zip(oldest).take(limits.len()));

    // Common operations have none, which the compiler would not see otherwise.
    let limiter_policy = op.limiter_policy.filter(|_| GENERAL);
    let mut facts = SizedFacts {
        admitted,
        refundable: match limiter_policy {
            Some(policy) => admitted && fits(&entries, policy, op.cost, now),
            None => admitted,
        },
        outcome: Outcome::Nothing,
        now,
        clock: op.at.waits_from(now, clock),
        newest: entries.newest(),
        usage,
    };
    if op.appends(admitted) {
        if !GENERAL && !admitted {
            return Evaluated::General;
        }
        let all = starts[..limits.len()].iter();
        let mut expired = all.fold(usize::MAX, |first, start| first.min(*start));
        if limiter_policy.is_some() {
            expired = aged(&entries, op, expired, now);
        }
        // An entry alone does not merge.
        let may_merge = GENERAL && entries.len() > expired && op.merges();
        if may_merge || !entries.can_push(op, expired) {
            return Evaluated::Convert(expired);
        }
        let number = entries.push(expired, op, now);
        facts.outcome = Outcome::Appended(Entry {
            id: EntryId::from_u128(u128::from(number)),
            at: now,
        });
        facts.newest = Some(now);
        for (start, usage) in starts.iter_mut().zip(&mut facts.usage) {
            *start = start.wrapping_sub(expired);
            usage.used += op.cost;
        }
        if admitted {
            // The blocker of an operation that fits is unspecified.
            for usage in &mut facts.usage {
                usage.blocker = usage.oldest;
            }
            if limiter_policy.is_some() {
                entries.drop_beyond(op.retention().max);
            }
            return Evaluated::Facts(facts);
        }
    }
    for (i, limit) in limits.iter().enumerate() {
        let usage = &mut facts.usage[i];
        let max = limit.max();
        if usage.used > max {
            if !GENERAL {
                return Evaluated::General;
            }
            return Evaluated::Facts(exceeding(limits, entries, op, starts, facts));
        }
        // No entry costs less than 1, so the first one releases a unit.
        let missing = (usage.used + op.cost).saturating_sub(max);
        usage.blocker = if missing <= 1 {
            usage.oldest
        } else {
            // Not in a closure, which would keep the usage in memory.
            entries.at(entries.reaching(starts[i], missing))
        };
    }
    Evaluated::Facts(facts)
}

/// Returns the facts if usage exceeds a maximum: a record, or an attempt that counts, was appended now or earlier.
#[cold]
#[inline(never)]
fn exceeding<const LIMITS: usize>(
    limits: &[Limit],
    mut entries: View<'_, impl Encoding>,
    op: &Op<'_>,
    starts: [usize; LIMITS],
    mut facts: SizedFacts<LIMITS>,
) -> SizedFacts<LIMITS> {
    for ((limit, start), usage) in limits.iter().zip(starts).zip(&mut facts.usage) {
        let used = usage.used;
        let max = limit.max();
        if used > 0 {
            usage.oldest = entries.at(entries.reaching(start, used.saturating_sub(max) + 1));
            // At most `used`: the cost of a record may be above the maximum.
            let missing = (used + op.cost).saturating_sub(max).clamp(1, used);
            usage.blocker = entries.at(entries.reaching(start, missing));
        }
    }
    if let Outcome::Appended(_) = facts.outcome {
        entries.drop_beyond(op.retention().max);
    }
    facts
}

/// Whether an operation of this cost fits every limit of a policy other than its own.
fn fits(entries: &View<'_, impl Encoding>, policy: &Policy, cost: u64, now: Timestamp) -> bool {
    policy.limits().iter().all(|limit| {
        let counts = |i| limit.window().counts(entries.at(i), now);
        let start = internal::gallop(0, entries.len(), |i| !counts(i));
        entries.cost_from(start).saturating_add(cost) <= limit.max()
    })
}

/// Returns how many of the first `expired` entries count neither for the operation's policy nor for the limiter's.
fn aged(entries: &View<'_, impl Encoding>, op: &Op<'_>, expired: usize, now: Timestamp) -> usize {
    let window = op.retention().window;
    internal::gallop(0, expired, |i| !window.counts(entries.at(i), now))
}

#[cfg(test)]
mod tests {
    use limiter_core::store::LogKey;
    use limiter_core::{Limit, Name, Receipt};

    use super::*;
    use crate::log::ring::MAX_LEN;

    #[test]
    fn a_log_longer_than_a_ring_becomes_sparse() {
        let len = MAX_LEN as u64 + 500;
        let policy = Policy::from(Limit::new(len, std::time::Duration::from_secs(60)).unwrap());
        let at = |micros| Timestamp::from_micros_saturating((1 << 50) + micros);
        let mut log = LogForm::new(u32::MAX - 150);
        let mut receipts = Vec::new();
        for i in 0..len {
            let facts = apply_any((&mut log, None), &Op::acquire("", &policy).at(at(i)), at(i));
            assert_eq!((facts.admitted, facts.log.usage[0].used), (true, i + 1));
            let Outcome::Appended(entry) = facts.outcome else {
                panic!("not appended")
            };
            receipts.push(Receipt::new(entry.id, entry.at, policy.longest_window()));
            // The ring is full before it is converted.
            let is_ring = matches!(log, LogForm::Ring(_));
            assert_eq!(is_ring, (4..MAX_LEN as u64).contains(&i), "after {i}");
        }
        let full = apply_any(
            (&mut log, None),
            &Op::acquire("", &policy).at(at(len)),
            at(len),
        );
        assert!(!full.admitted);
        for (i, receipt) in receipts.iter().enumerate().step_by(2003) {
            let refund = Settlement::new(LogKey::new(Name::default(), ""), &policy, *receipt, 0);
            let twice = [at(len); 2].map(|now| settle(&mut log, &refund, now).applied());
            assert_eq!(twice, [true, false], "entry {i}");
        }
        assert_eq!(log.len(), receipts.len() - receipts.len().div_ceil(2003));
    }
}
