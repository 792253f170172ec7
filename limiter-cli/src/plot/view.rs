//! What a picture shows.

use limiter_core::{Policy, Timestamp};

use super::axis::{Span, round_step};
use crate::summary::{KeyCount, Summary};
use crate::text;

/// How many keys the lowest panel shows.
const STRIPS: usize = 8;

/// The most buckets that the span of the trace is cut into.
const BUCKETS: u64 = 124;

/// The key, the span of time and the resolution of a picture.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) key: Box<[u8]>,
    pub(super) count: KeyCount,
    /// The span of the whole trace, in whole buckets.
    pub(super) whole: Span,
    /// The span in which the key's usage is shown.
    pub(super) close: Span,
    pub(super) bucket: u64,
    /// The keys of the lowest panel, and how often each was denied.
    pub(super) strips: Vec<(Box<[u8]>, KeyCount)>,
    pub(super) relative: bool,
    pub(super) keys: usize,
    pub(super) keys_denied: usize,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

impl View {
    /// The view of a key, without one of the key that was denied most, or else the busiest.
    ///
    /// # Errors
    /// The trace has no such key, or no rows.
    pub fn new(summary: &Summary, policy: &Policy, key: Option<&[u8]>) -> Result<Self, String> {
        let Some((first, last)) = summary.span else {
            return Err("there is nothing to plot: the trace has no rows".to_owned());
        };
        let mut top = summary.most_denied(STRIPS);
        if top.is_empty() {
            top = summary.busiest(STRIPS);
        }
        let (key, count) = match key {
            None => top[0],
            Some(key) => match summary.key(key) {
                Some(count) => (key, *count),
                None => return Err(format!("there is nothing to plot: the trace has no key {}", text::key(key, 60))),
            },
        };
        let (first, last) = (first.as_micros(), last.as_micros());
        let bucket = round_step(last - first, BUCKETS);
        Ok(Self {
            key: key.into(),
            count,
            whole: Span::new(first / bucket * bucket, (last / bucket + 1) * bucket),
            close: close(&count, first, last, policy.longest_window().as_micros()),
            bucket,
            strips: top.into_iter().map(|(key, count)| (key.into(), count)).collect(),
            relative: text::is_relative(Timestamp::from_micros_saturating(last)),
            keys: summary.keys(),
            keys_denied: summary.keys_denied(),
            allowed: summary.allowed + summary.recorded,
            denied: summary.denied,
        })
    }

    /// Whether the usage is shown for a part of the trace only.
    pub(super) fn is_close(&self) -> bool {
        self.close.length() * 10 < self.whole.length() * 8
    }

    pub(super) fn buckets(&self) -> usize {
        usize::try_from(self.whole.length() / self.bucket).unwrap_or(0)
    }
}

/// The span around a key's worst stretch, or its peak. All of a trace that is short next to the window.
fn close(count: &KeyCount, first: u64, last: u64, window: u64) -> Span {
    const SHORT: u64 = 12;
    let all = Span::new(first, last.saturating_add(window).saturating_add(window / 10));
    let (from, to) = match count.worst.denied {
        0 => (count.peak.1, count.peak.1),
        _ => (count.worst.from, count.worst.to),
    };
    let (before, after) = (window.saturating_mul(3) / 2, window.saturating_mul(2));
    let from = from.as_micros().saturating_sub(before).max(first);
    let near = Span::new(from, to.as_micros().saturating_add(after).min(all.to));
    let short = last - first <= window.saturating_mul(SHORT);
    if short || near.length() >= all.length() / 10 * 8 { all } else { near }
}
