//! Axes with round numbers.

use limiter_core::Timestamp;

use crate::text;

/// The number of pixel columns of a panel.
pub(super) const COLUMNS: u32 = 1_000;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

/// A time span in microseconds. `to` is later than `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Span {
    /// Returns the span from `from` to `to`, or one microsecond if that is empty.
    pub(super) fn new(from: u64, to: u64) -> Self {
        Self { from, to: to.max(from.saturating_add(1)) }
    }

    pub(super) fn length(self) -> u64 {
        self.to - self.from
    }

    /// Returns the position of `at` in the span, from 0 to `cells`. Clamps times outside the span.
    pub(super) fn scale(self, at: u64, cells: u32) -> u32 {
        let into = at.clamp(self.from, self.to) - self.from;
        let scaled = u128::from(into) * u128::from(cells) / u128::from(self.length());
        u32::try_from(scaled).unwrap_or(cells)
    }

    /// Returns the first time at this position of the span, which has `cells` positions.
    pub(super) fn start(self, cell: u32, cells: u32) -> u64 {
        let into = (u128::from(cell) * u128::from(self.length())).div_ceil(u128::from(cells));
        u64::try_from(into).map_or(self.to, |into| self.from + into)
    }

    /// Returns the round times in the span with their labels, at most `most` + 1 of them.
    pub(super) fn ticks(self, most: u64, relative: bool) -> Vec<(u64, String)> {
        let step = round_step(self.length(), most);
        let format = match step {
            0..SECOND => "%H:%M:%S%.f",
            SECOND..60_000_000 => "%H:%M:%S",
            60_000_000..DAY => "%H:%M",
            _ if self.length() > 300 * DAY => "%b %Y",
            _ => "%-d %b",
        };
        let first = self.from.div_ceil(step);
        (first..=self.to / step)
            .map(|i| {
                let at = i * step;
                let format = if format == "%H:%M" && at.is_multiple_of(DAY) { "%-d %b" } else { format };
                (at, text::clock(Timestamp::from_micros_saturating(at), format, relative))
            })
            .collect()
    }
}

/// Returns the shortest round duration of which at most `most` fit into `length`.
pub(super) fn round_step(length: u64, most: u64) -> u64 {
    const DECIMAL: [u64; 3] = [1, 2, 5];
    let fine = (0..6).flat_map(|power| DECIMAL.iter().map(move |n| n * 10_u64.pow(power)));
    let seconds = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200];
    let days = [1, 2, 7, 14, 28].into_iter().chain((0..20).map(|power| 56 << power));
    let steps = fine.chain(seconds.map(|n| n * SECOND)).chain(days.map(|n| n * DAY));
    { steps }.find(|step| length / step <= most).unwrap_or(length.max(1))
}

/// Returns whole round numbers from 0 to `top`, at most `most` of them above 0.
pub(super) fn round_numbers(top: f64, most: u32) -> Vec<f64> {
    let steps = (0..18).flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power)));
    let step = { steps }.find(|step| top / step <= f64::from(most)).unwrap_or(top.max(1.0));
    (0..=most).map(|i| f64::from(i) * step).take_while(|number| *number <= top).collect()
}
