//! The key, time span and resolution of a plot.

use limiter_core::{Policy, Timestamp};

use super::axis::{Span, round_step};
use crate::replay::summary::{CountedKey, KeyCount, Summary};
use crate::text;

/// The number of keys in the lowest panel.
const STRIPS: usize = 8;

/// The maximum number of buckets in the span of the trace.
const BUCKETS: u64 = 124;

const HOUR: u64 = 3_600_000_000;

/// The key, time span and resolution of a plot.
#[derive(Clone, Debug)]
pub(crate) struct View<'a> {
    pub(super) key: &'a [u8],
    pub(super) count: KeyCount,
    /// The span of the whole trace, in whole buckets.
    pub(super) whole: Span,
    /// The span of the usage panel.
    pub(super) close: Span,
    pub(super) bucket: u64,
    /// The keys of the lowest panel, with the number of denials of each.
    pub(super) strips: Vec<CountedKey<'a>>,
    pub(super) relative: bool,
    pub(super) summary: &'a Summary,
}

impl<'a> View<'a> {
    /// Returns the view of a key. Default: the key with the most denials, else the busiest. Fails if the trace has no
    /// such key, or no rows.
    pub(crate) fn new(summary: &'a Summary, policy: &Policy, key: Option<&'a [u8]>) -> Result<Self, String> {
        let Some((first, last)) = summary.span else {
            return Err("there is nothing to plot: the trace has no rows".to_owned());
        };
        let mut top = summary.most_denied(STRIPS);
        if top.is_empty() {
            top = summary.busiest(STRIPS);
        }
        let (key, count) = match key {
            None => top[0],
            Some(key) => match summary.keys.get(key) {
                Some(count) => (key, *count),
                None => return Err(format!("there is nothing to plot: the trace has no key {}", text::key(key, 60))),
            },
        };
        let (first, last) = (first.as_micros(), last.as_micros());
        let window = policy.longest_window().as_micros();
        // A trace with a single time still needs a span.
        let end = last.max(first.saturating_add(window.min(HOUR)));
        let bucket = round_step(end - first, BUCKETS);
        Ok(Self {
            key,
            count,
            whole: Span::new(first / bucket * bucket, (end / bucket + 1) * bucket),
            close: close_up(&count, first, last, window),
            bucket,
            strips: top,
            relative: text::is_relative(Timestamp::from_micros_saturating(last)),
            summary,
        })
    }

    /// Returns whether the usage panel shows only a part of the trace.
    pub(super) fn is_close_up(&self) -> bool {
        self.close.length() * 10 < self.whole.length() * 8
    }

    /// Returns whether the view ends before the key's worst streak does.
    pub(super) fn ends_early(&self) -> bool {
        self.count.denied > 0 && self.close.to < self.count.worst.to.as_micros()
    }

    pub(super) fn buckets(&self) -> usize {
        usize::try_from(self.whole.length() / self.bucket).unwrap_or(0)
    }
}

/// Returns the span around the key's worst streak, or its peak, narrow enough to show single steps. Returns the whole
/// trace if it is short compared to the window.
fn close_up(count: &KeyCount, first: u64, last: u64, window: u64) -> Span {
    const SHORT: u64 = 16;
    const LONG: u64 = 40;
    let all = Span::new(first, last.saturating_add(window).saturating_add(window / 10));
    if all.length() <= window.saturating_mul(SHORT) {
        return all;
    }
    let (from, to) = match count.worst.denied {
        0 => (count.peak.1, count.peak.1),
        _ => (count.worst.from, count.worst.to),
    };
    let from = from.as_micros().saturating_sub(window.saturating_mul(3) / 2).max(first);
    let to = to.as_micros().saturating_add(window.saturating_mul(2)).min(all.to);
    let near = Span::new(from, to.min(from.saturating_add(window.saturating_mul(LONG))));
    if near.length() >= all.length() / 10 * 8 { all } else { near }
}
