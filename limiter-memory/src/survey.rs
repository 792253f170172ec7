//! What every form of a log computes alike: which entries count, whether an operation fits, and the facts.

use limiter_core::{Facts, Op, Outcome, PerLimit, Timestamp, Usage, Window};

/// Entries in the order in which they were appended.
pub(crate) trait Entries {
    /// The time of the `i`-th entry.
    fn at(&self, i: usize) -> Timestamp;
    /// The index of the first entry that counts in `window` at `now`. `limit` is the index of the limit that asks, under
    /// which a log may remember the answer as a hint.
    fn start(&mut self, limit: usize, window: Window, now: Timestamp) -> usize;
    /// The cost of the entries from `start` on.
    fn cost_from(&self, start: usize) -> u64;
    /// The first entry from `start` on with which the entries from `start` on hold at least `cost`.
    fn reaching(&self, start: usize, cost: u64) -> usize;
}

/// One limit's window in a log.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// The index of the first entry that counts.
    pub(crate) start: usize,
    pub(crate) used: u64,
}

/// Each limit's window at `now`.
#[inline]
pub(crate) fn spans(entries: &mut impl Entries, op: &Op<'_>, now: Timestamp) -> PerLimit<Span> {
    PerLimit::map(op.policy.limits(), |i, limit| {
        let start = entries.start(i, limit.window(), now);
        Span { start, used: entries.cost_from(start) }
    })
}

/// Whether the operation fits every limit.
#[inline]
pub(crate) fn fits(spans: &PerLimit<Span>, op: &Op<'_>) -> bool {
    spans.iter().zip(op.policy.limits().iter()).all(|(span, limit)| span.used + op.cost <= limit.max())
}

/// The facts about a log as `spans` describes it.
#[inline]
pub(crate) fn facts(
    entries: &impl Entries,
    spans: &PerLimit<Span>,
    op: &Op<'_>,
    now: Timestamp,
    newest: Option<Timestamp>,
    (admitted, outcome): (bool, Outcome),
) -> Facts {
    let usage = PerLimit::map(op.policy.limits(), |i, limit| {
        let Span { start, used } = spans[i];
        let mut usage = Usage { used, ..Usage::default() };
        if used > 0 {
            let excess = used.saturating_sub(limit.max());
            usage.oldest = entries.at(entries.reaching(start, excess + 1));
            if used + op.cost > limit.max() {
                // At most `used`: a store relies on costs that are no higher than the maximum.
                let room = (used + op.cost - limit.max()).min(used);
                usage.blocker = if room == excess + 1 { usage.oldest } else { entries.at(entries.reaching(start, room)) };
            }
        }
        usage
    });
    Facts { now, admitted, outcome, newest, usage }
}
