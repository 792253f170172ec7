//! What every form of a log computes alike: which entries count, whether an operation fits, and the facts.

use crate::entries::{Entries, gallop};
use limiter_core::store::{Entry, Facts, LogFacts, Op, Outcome, Usage};
use limiter_core::{EntryId, Limit, PerLimit, Timestamp};

/// One limit's window in a log.
#[derive(Clone, Copy)]
struct Span {
    /// The index of the first entry that counts.
    start: usize,
    used: u64,
}

/// What an operation finds.
pub(crate) struct Survey<'a, const N: usize> {
    now: Timestamp,
    newest: Option<Timestamp>,
    /// Each limit's window; the array has room for each limit of the policy, and what is beyond them stays zero.
    spans: [Span; N],
    admitted: bool,
    limits: &'a [Limit],
    len: usize,
}

impl<'a, const N: usize> Survey<'a, N> {
    /// How many limits there are, which the compiler knows where there is one.
    #[inline]
    fn len(&self) -> usize {
        if N == 1 { 1 } else { self.len }
    }

    #[inline]
    pub(crate) fn new(entries: &mut impl Entries, op: &Op<'a>, now: Timestamp) -> Self {
        let newest = entries.newest();
        let now = entries.not_before(now);
        let mut spans = [Span { start: 0, used: 0 }; N];
        let mut admitted = true;
        let limits = op.policy.limits();
        let len = limits.len().min(N);
        for (i, limit) in limits[..len].iter().enumerate() {
            let (start, _) = entries.first::<N>(i, limit.window(), now);
            spans[i] = Span { start, used: entries.cost_from(start) };
            admitted &= spans[i].used + op.cost <= limit.max();
        }
        entries.remember(spans[..len].iter().map(|span| span.start));
        Self { now, newest, spans, admitted, limits, len }
    }

    /// Applies the operation to a log that it does not [outgrow](Self::outgrows).
    #[inline]
    pub(crate) fn apply(mut self, entries: &mut impl Entries, op: &Op<'_>) -> Facts {
        let admitted = self.admitted;
        if !op.appends(admitted) {
            return self.facts(entries, op, admitted, Outcome::Nothing);
        }
        let expired = self.expired(entries, op);
        let number = entries.push(expired, op, self.now);
        self.append(op.cost, expired);
        let entry = Entry { id: EntryId::from_u128(u128::from(number)), at: self.now };
        let facts = self.facts(entries, op, admitted, Outcome::Appended(entry));
        if !admitted || op.limiter_policy.is_some() {
            // Under one policy, what is admitted never takes a log beyond the largest maximum.
            entries.drop_beyond(op.retention().max);
        }
        facts
    }

    /// Whether the operation appends an entry that the log should not take in this form.
    #[inline]
    pub(crate) fn outgrows(&self, entries: &impl Entries, op: &Op<'_>) -> bool {
        op.appends(self.admitted) && !entries.takes::<N>(op, self.expired(entries, op))
    }

    /// The facts for an operation whose entry is in the log already.
    pub(crate) fn repeat(&self, entries: &impl Entries, op: &Op<'_>, (verdict, entry): (bool, Entry)) -> Facts {
        self.facts(entries, op, verdict, Outcome::Repeated(entry))
    }

    /// How many of the first entries nobody can see any more, because of their age.
    #[inline]
    pub(crate) fn expired(&self, entries: &impl Entries, op: &Op<'_>) -> usize {
        let first = self.spans[..self.len()].iter().fold(usize::MAX, |first, span| first.min(span.start));
        match op.limiter_policy {
            None => first,
            Some(_) => gallop(0, first, |i| !op.retention().window.counts(entries.at(i), self.now)),
        }
    }

    /// The log as it is, read by the limits of an operation that appends nothing.
    pub(crate) fn log_facts(&self, entries: &impl Entries) -> LogFacts {
        self.log(entries, 0)
    }

    /// Describes the log as it is when the `expired` first entries have been dropped and one of this cost appended.
    #[inline]
    fn append(&mut self, cost: u64, expired: usize) {
        let len = self.len();
        for span in &mut self.spans[..len] {
            span.start -= expired;
            span.used += cost;
        }
        self.newest = Some(self.now);
    }

    /// The facts about the log as the survey describes it.
    #[inline]
    fn facts(&self, entries: &impl Entries, op: &Op<'_>, admitted: bool, outcome: Outcome) -> Facts {
        Facts { admitted, outcome, log: self.log(entries, op.cost) }
    }

    #[inline]
    fn log(&self, entries: &impl Entries, cost: u64) -> LogFacts {
        let mut usage = [Usage::default(); N];
        for i in 0..self.len() {
            let (Span { start, used }, max) = (self.spans[i], self.limits[i].max());
            let usage = &mut usage[i];
            usage.used = used;
            if used > 0 {
                let excess = used.saturating_sub(max);
                // No entry costs less than 1, so the first one frees a unit.
                let first = if excess == 0 { start } else { entries.reaching(start, excess + 1) };
                usage.oldest = entries.at(first);
                usage.blocker = usage.oldest;
                if used + cost > max + excess + 1 {
                    // At most `used`: the cost is no higher than the maximum.
                    let room = (used + cost - max).min(used);
                    usage.blocker = entries.at(entries.reaching(start, room));
                }
            }
        }
        let usage = PerLimit::from_slice(&usage[..self.len()]).unwrap_or_else(|| PerLimit::one(usage[0]));
        LogFacts { now: self.now, newest: self.newest, usage }
    }
}
