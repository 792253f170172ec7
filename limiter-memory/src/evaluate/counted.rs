//! The first step of both evaluations: which entries each limit counts, and whether the operation fits.

use std::hint::select_unpredictable;

use limiter_core::store::{Op, Usage};
use limiter_core::{Limit, Timestamp};

use crate::log::encoding::Encoding;
use crate::log::view::View;

/// The log's state before the operation, with at most `LIMITS` limits.
pub(super) struct Counted<'a, const LIMITS: usize> {
    pub(super) limits: &'a [Limit],
    pub(super) admitted: bool,
    pub(super) now: Timestamp,
    /// The time from which waits count.
    pub(super) clock: Timestamp,
    /// The first entry that each limit counts.
    pub(super) starts: [usize; LIMITS],
    /// The cost of the entries that count, and the time of the oldest.
    pub(super) usage: [Usage; LIMITS],
}

impl<'a, const LIMITS: usize> Counted<'a, LIMITS> {
    #[inline(always)]
    pub(super) fn new(
        limits: &'a [Limit],
        entries: &mut View<'_, impl Encoding>,
        op: &Op<'_>,
        clock: Timestamp,
    ) -> Self {
        let now = entries.clamp(clock);
        let clock = op.at.waits_from(now, clock);
        let (mut admitted, mut starts, mut usage) = (true, [0; LIMITS], [Usage::default(); LIMITS]);
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
        Self {
            limits,
            admitted,
            now,
            clock,
            starts,
            usage,
        }
    }

    /// Returns how many entries no limit counts.
    #[inline(always)]
    pub(super) fn expired(&self) -> usize {
        self.starts[..self.limits.len()]
            .iter()
            .fold(usize::MAX, |first, start| first.min(*start))
    }
}
