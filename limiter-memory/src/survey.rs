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

/// Each limit's window at `now`. The array has room for each limit of the policy; what is beyond them stays zero.
#[inline]
pub(crate) fn spans<const N: usize>(entries: &mut impl Entries, op: &Op<'_>, now: Timestamp) -> [Span; N] {
    let mut spans = [Span { start: 0, used: 0 }; N];
    for (i, (span, limit)) in spans.iter_mut().zip(op.policy.limits().iter()).enumerate() {
        span.start = entries.start(i, limit.window(), now);
        span.used = entries.cost_from(span.start);
    }
    spans
}

/// Whether the operation fits every limit.
#[inline]
pub(crate) fn fits(spans: &[Span], op: &Op<'_>) -> bool {
    spans
        .iter()
        .zip(op.policy.limits().iter())
        .fold(true, |fits, (span, limit)| fits & (span.used + op.cost <= limit.max()))
}

/// How many of the first entries count in no window, and the windows when those are dropped and the operation's entry
/// is appended.
#[inline]
pub(crate) fn appended<const N: usize>(mut spans: [Span; N], op: &Op<'_>) -> (usize, [Span; N]) {
    let limits = op.policy.limits().len().min(N);
    let expired = spans[..limits].iter().fold(usize::MAX, |first, span| first.min(span.start));
    for span in &mut spans[..limits] {
        span.start -= expired;
        span.used += op.cost;
    }
    (expired, spans)
}

/// The facts about a log as `spans` describes it.
#[inline]
pub(crate) fn facts<const N: usize>(
    entries: &impl Entries,
    spans: &[Span; N],
    op: &Op<'_>,
    now: Timestamp,
    newest: Option<Timestamp>,
    (admitted, outcome): (bool, Outcome),
) -> Facts {
    let mut usage = [Usage::default(); N];
    for ((usage, &Span { start, used }), limit) in usage.iter_mut().zip(spans).zip(op.policy.limits().iter()) {
        usage.used = used;
        if used > 0 {
            let excess = used.saturating_sub(limit.max());
            usage.oldest = entries.at(entries.reaching(start, excess + 1));
            if used + op.cost > limit.max() {
                // At most `used`: a store relies on costs that are no higher than the maximum.
                let room = (used + op.cost - limit.max()).min(used);
                usage.blocker =
                    if room == excess + 1 { usage.oldest } else { entries.at(entries.reaching(start, room)) };
            }
        }
    }
    Facts { now, admitted, outcome, newest, usage: PerLimit::from_array(usage, op.policy.limits().len()) }
}
