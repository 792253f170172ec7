//! A step function at the resolution of the plot.

use super::axis::{COLUMNS, Span};

/// The values of the function within one pixel column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column {
    pub(super) first: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) last: f64,
}

/// A step function, built in order of time. Every column keeps its minimum and maximum, so no peak is lost.
#[derive(Debug)]
pub(super) struct Steps {
    span: Span,
    value: f64,
    columns: Vec<Column>,
}

impl Steps {
    pub(super) fn new(span: Span) -> Self {
        Self { span, value: 0.0, columns: Vec::with_capacity(COLUMNS as usize) }
    }

    /// Sets the value from `at` on.
    pub(super) fn set(&mut self, at: u64, value: f64) {
        if (self.span.from..self.span.to).contains(&at) {
            self.fill(self.span.scale(at, COLUMNS) as usize + 1);
            if let Some(column) = self.columns.last_mut() {
                column.low = column.low.min(value);
                column.high = column.high.max(value);
                column.last = value;
            }
        } else if at >= self.span.to {
            self.fill(COLUMNS as usize);
        }
        self.value = value;
    }

    fn fill(&mut self, columns: usize) {
        let value = self.value;
        while self.columns.len() < columns {
            self.columns.push(Column { first: value, low: value, high: value, last: value });
        }
    }

    /// Returns all columns. The last value extends to the end of the span.
    pub(super) fn finish(mut self) -> Vec<Column> {
        self.fill(COLUMNS as usize);
        self.columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_shorter_than_a_column_is_kept() {
        let mut steps = Steps::new(Span::new(1_000_000, 2_000_000));
        for (at, value) in [(0, 3.0), (1_500_000, 5.0), (1_500_001, 9.0), (1_500_002, 1.0), (3_000_000, 7.0)] {
            steps.set(at, value);
        }
        let columns = steps.finish();
        assert_eq!(columns.len(), COLUMNS as usize);
        assert_eq!(columns[0], Column { first: 3.0, low: 3.0, high: 3.0, last: 3.0 });
        assert_eq!(columns[500], Column { first: 3.0, low: 1.0, high: 9.0, last: 1.0 });
        assert_eq!(columns[999].last, 1.0);
    }
}
