//! The general version: every operation, on every form of a log.

use limiter_core::store::{
    Change, Changed, Entry, EntryId, Facts, LogFacts, Mode, Op, Outcome, Settlement,
    SettlementFacts, Usage,
};
use limiter_core::{MAX_LIMITS, PerLimit, Policy, Timestamp, internal};

use super::counted::Counted;
use crate::log::encoding::Encoding;
use crate::log::view::View;
use crate::log::{LogForm, with_entries};

/// Applies an operation to a log.
#[inline(never)]
pub(crate) fn apply(log: &mut LogForm, op: Op<'_>, now: Timestamp) -> Facts {
    if op.id.is_some() {
        return log.make_sparse().apply(&op, now);
    }
    let expired = with_entries!(log, entries => {
        let general = General::of(entries, &op, now);
        if !general.needs_conversion(entries, &op) {
            return general.apply(entries, &op);
        }
        general.expired_for_all(entries, &op)
    }, sparse => return sparse.apply(&op, now));
    log.convert_for(&op, expired);
    with_entries!(log, entries => General::of(entries, &op, now).apply(entries, &op), sparse => sparse.apply(&op, now))
}

/// Sets the cost of the entry that a receipt names, or removes the entry.
pub(crate) fn settle(
    log: &mut LogForm,
    settlement: &Settlement<'_>,
    now: Timestamp,
) -> SettlementFacts {
    let unchanged = with_entries!(log, entries => {
        let (receipt, time) = (&settlement.receipt, entries.clamp(now));
        let number = u64::try_from(receipt.entry().as_u128()).ok().filter(|_| !receipt.has_expired(time));
        let found = number.and_then(|number| entries.find(number)).filter(|&i| entries.at(i) == receipt.at());
        let changed = found.map(|i| Changed {
            cost_before: entries.cost_from(i) - entries.cost_from(i + 1),
            entry: Entry { id: receipt.entry(), at: receipt.at() },
        });
        // A receipt without an entry must not cost memory.
        changed.is_none_or(|changed| settlement.change == Change::Cost(changed.cost_before)).then(|| {
            let mut op = Op::new(Mode::Peek, settlement.log.key, settlement.policy);
            op.at = settlement.at;
            let log = General::of(entries, &op, now).log_facts(entries, 0);
            SettlementFacts { changed, log }
        })
    }, _ => None);
    unchanged.unwrap_or_else(|| log.make_sparse().settle(settlement, now))
}

type General<'a> = Counted<'a, MAX_LIMITS>;

impl<'a> General<'a> {
    fn of(entries: &mut View<'_, impl Encoding>, op: &Op<'a>, now: Timestamp) -> Self {
        Self::new(op.policy.limits(), entries, op, now)
    }

    /// Applies the operation to a log that [needs no conversion](Self::needs_conversion).
    fn apply(mut self, entries: &mut View<'_, impl Encoding>, op: &Op<'_>) -> Facts {
        let admitted = self.admitted;
        let refundable = admitted
            && op
                .limiter_policy
                .is_none_or(|policy| self.fits(entries, policy, op.cost));
        if !op.appends(admitted) {
            return Facts {
                admitted,
                refundable,
                outcome: Outcome::Nothing,
                log: self.log_facts(entries, op.cost),
            };
        }
        let expired = self.expired_for_all(entries, op);
        let number = entries.push(expired, op, self.now);
        for i in 0..self.limits.len() {
            self.starts[i] -= expired;
            self.usage[i].used += op.cost;
        }
        let entry = Entry {
            id: EntryId::from_u128(u128::from(number)),
            at: self.now,
        };
        let (outcome, log) = (Outcome::Appended(entry), self.log_facts(entries, op.cost));
        if !admitted || op.limiter_policy.is_some() {
            // With one policy, admissions never take a log above the largest maximum.
            entries.drop_beyond(op.retention().max);
        }
        Facts {
            admitted,
            refundable,
            outcome,
            log,
        }
    }

    /// Whether an operation of this cost fits every limit of a policy other than its own.
    fn fits(&self, entries: &View<'_, impl Encoding>, policy: &Policy, cost: u64) -> bool {
        policy.limits().iter().all(|limit| {
            let start = internal::gallop(0, entries.len(), |i| {
                !limit.window().counts(entries.at(i), self.now)
            });
            entries.cost_from(start).saturating_add(cost) <= limit.max()
        })
    }

    /// Whether the operation appends an entry that the log cannot take in its form. An entry alone does not merge.
    fn needs_conversion(&self, entries: &View<'_, impl Encoding>, op: &Op<'_>) -> bool {
        let expired = self.expired_for_all(entries, op);
        let merges = entries.len() > expired && op.merges();
        op.appends(self.admitted) && (merges || !entries.can_push(op, expired))
    }

    /// Returns how many of the first entries count neither for the operation's policy nor for the limiter's.
    fn expired_for_all(&self, entries: &View<'_, impl Encoding>, op: &Op<'_>) -> usize {
        match op.limiter_policy {
            None => self.expired(),
            Some(_) => internal::gallop(0, self.expired(), |i| {
                !op.retention().window.counts(entries.at(i), self.now)
            }),
        }
    }

    /// Returns the facts about the log for an operation of this cost, or of no operation if it is 0.
    fn log_facts(&self, entries: &View<'_, impl Encoding>, cost: u64) -> LogFacts {
        let mut usage = [Usage::default(); MAX_LIMITS];
        for (i, limit) in self.limits.iter().enumerate() {
            let (start, used, max) = (self.starts[i], self.usage[i].used, limit.max());
            let usage = &mut usage[i];
            usage.used = used;
            if used > 0 {
                let excess = used.saturating_sub(max);
                // No entry costs less than 1, so the first one releases a unit.
                let first = if excess == 0 {
                    start
                } else {
                    entries.reaching(start, excess + 1)
                };
                usage.oldest = entries.at(first);
                usage.blocker = usage.oldest;
                if used + cost > max + excess + 1 {
                    // At most `used`: the cost is no higher than the maximum.
                    let missing = (used + cost - max).min(used);
                    usage.blocker = entries.at(entries.reaching(start, missing));
                }
            }
        }
        let usage = PerLimit::from_slice(&usage[..self.limits.len()])
            .unwrap_or_else(|| PerLimit::from([usage[0]]));
        LogFacts {
            now: self.now,
            clock: self.clock,
            newest: entries.newest(),
            usage,
        }
    }
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
        let (mut log, mut receipts) = (LogForm::new(u32::MAX - 150), Vec::new());
        for i in 0..len {
            let facts = apply(&mut log, Op::acquire("", &policy).at(at(i)), at(i));
            assert_eq!((facts.admitted, facts.log.usage[0].used), (true, i + 1));
            let Outcome::Appended(entry) = facts.outcome else {
                panic!("not appended")
            };
            receipts.push(Receipt::new(entry.id, entry.at, policy.longest_window()));
            // The ring is full before it is converted.
            assert_eq!(
                matches!(log, LogForm::Ring(_)),
                (4..MAX_LEN as u64).contains(&i),
                "after {i}"
            );
        }
        assert!(!apply(&mut log, Op::acquire("", &policy).at(at(len)), at(len)).admitted);
        for (i, receipt) in receipts.iter().enumerate().step_by(2003) {
            let refund = Settlement::new(LogKey::new(Name::default(), ""), &policy, *receipt, 0);
            assert_eq!(
                [at(len); 2].map(|now| settle(&mut log, &refund, now).applied()),
                [true, false],
                "entry {i}"
            );
        }
        assert_eq!(log.len(), receipts.len() - receipts.len().div_ceil(2003));
    }
}
