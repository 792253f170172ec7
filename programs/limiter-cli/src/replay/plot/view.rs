//! A plot's keys and time spans.

use std::ops::Range;

use limiter_core::{Policy, Timestamp};

use crate::replay::summary::{CountedKey, KeyCount, Summary};
use crate::text;

/// The number of columns into which a time span is divided.
pub(super) const COLUMNS: usize = 1_000;

/// The number of keys in the lowest panel.
const TOP_KEYS: usize = 8;

/// The maximum number of buckets in the span of the trace.
const BUCKETS: u64 = 124;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A plot's keys and time spans, in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct View<'a> {
    /// The key whose usage is plotted.
    pub(super) key: &'a [u8],
    pub(super) count: KeyCount,
    /// The span of the whole trace, in whole buckets.
    pub(super) whole: Range<u64>,
    pub(super) bucket: u64,
    /// The span in which usage is plotted.
    pub(super) close: Range<u64>,
    /// Whether that is only a part of the trace.
    pub(super) is_close_up: bool,
    /// The most denied keys, then the keys closest to their limit.
    pub(super) top: Vec<CountedKey<'a>>,
    pub(super) relative: bool,
    pub(super) summary: &'a Summary,
}

impl<'a> View<'a> {
    /// Returns the view of a key. Default: the key with the most denials, else the busiest. Fails if the trace has no
    /// such key, or no rows.
    pub(crate) fn new(
        summary: &'a Summary,
        policy: &Policy,
        key: Option<&'a [u8]>,
    ) -> Result<Self, String> {
        let Some((first, last)) = summary.span else {
            return Err("there is nothing to plot: the trace has no rows".to_owned());
        };
        let (key, count) = match key {
            None => summary.top(1, |count| (count.denied, count.rows as f64))[0],
            Some(key) => match summary.keys.get(key) {
                Some(count) => (key, *count),
                None => {
                    return Err(format!(
                        "there is nothing to plot: the trace has no key {}",
                        text::key(key, 60)
                    ));
                }
            },
        };
        let first = first.as_micros();
        let last = last.as_micros();
        let window = policy.longest_window().as_micros();
        // A trace with a single time still needs a span.
        let end = last.max(first.saturating_add(window.min(HOUR)));
        let bucket = round_step(end - first, BUCKETS);
        let all = first
            ..last
                .saturating_add(window)
                .saturating_add(window / 10)
                .max(first + 1);
        let near = near(&count, &all, window);
        let is_close_up = near.end - near.start < (all.end - all.start) / 2;
        Ok(Self {
            key,
            count,
            whole: first / bucket * bucket..(end / bucket + 1) * bucket,
            bucket,
            close: if is_close_up { near } else { all },
            is_close_up,
            top: summary.top(TOP_KEYS, |count| (count.denied, count.peak.0)),
            relative: text::is_relative(Timestamp::from_micros_saturating(last)),
            summary,
        })
    }

    /// Returns the time span of a bucket's bar, which leaves a gap before the next bar.
    pub(super) fn bar(&self, bucket: usize) -> (u64, u64) {
        let from = self.whole.start + bucket as u64 * self.bucket;
        (from, from + (self.bucket * 9 / 10).max(1))
    }
}

/// Returns the span around the key's longest run of denials, or its peak.
fn near(count: &KeyCount, all: &Range<u64>, window: u64) -> Range<u64> {
    let (from, to) = match count.worst.denied {
        0 => (count.peak.1, count.peak.1),
        _ => (count.worst.from, count.worst.to),
    };
    let from = from.as_micros().saturating_sub(window / 2).max(all.start);
    from..to
        .as_micros()
        .saturating_add(window.saturating_mul(3) / 2)
        .min(all.end)
}

/// Returns the first time in a column of a span; for the number of columns, the end of the span.
pub(super) fn column_start(span: &Range<u64>, column: usize) -> u64 {
    let into = (column as u128 * u128::from(span.end - span.start)).div_ceil(COLUMNS as u128);
    span.start
        .saturating_add(u64::try_from(into).unwrap_or(u64::MAX))
}

/// Returns round times in a span with their labels, at most seven.
pub(super) fn ticks(span: &Range<u64>, relative: bool) -> Vec<(u64, String)> {
    let step = round_step(span.end - span.start, 6);
    let label = |at: u64| {
        let format = match step {
            0..SECOND => "%H:%M:%S%.f",
            SECOND..MINUTE => "%H:%M:%S",
            MINUTE..DAY if !at.is_multiple_of(DAY) => "%H:%M",
            _ if step > 28 * DAY => "%b %Y",
            _ => "%-d %b",
        };
        (
            at,
            text::clock(Timestamp::from_micros_saturating(at), format, relative),
        )
    };
    (span.start.div_ceil(step)..=span.end / step)
        .map(|i| label(i * step))
        .collect()
}

/// Returns the shortest round duration of which at most `most` fit into `length`.
fn round_step(length: u64, most: u64) -> u64 {
    let fine = (0..6).flat_map(|power| [1, 2, 5].map(|n| n * 10_u64.pow(power)));
    let seconds = [
        1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    ];
    let days = [1, 2, 7, 14, 28]
        .into_iter()
        .chain((0..20).map(|power| 56 << power));
    let steps = fine
        .chain(seconds.map(|n| n * SECOND))
        .chain(days.map(|n| n * DAY));
    { steps }
        .find(|step| length / step <= most)
        .unwrap_or(length.max(1))
}
