//! The progress of a replay.

use indicatif::ProgressBar;

use super::row_result::{Observer, RowResult};
use crate::progress::bar;
use crate::text;
use crate::trace::{Malformed, Row};

/// Forwards all rows, and shows the progress if standard error is a terminal.
pub(crate) struct WithProgress<O> {
    pub(crate) observer: O,
    bar: Option<ProgressBar>,
}

impl<O> WithProgress<O> {
    pub(crate) fn new(observer: O, what: &'static str, bytes: Option<u64>) -> Self {
        Self { observer, bar: bar(what, bytes) }
    }
}

impl<O> Drop for WithProgress<O> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl<O: Observer> Observer for WithProgress<&mut O> {
    #[inline]
    fn row(&mut self, row: &Row<'_>, result: &RowResult) -> anyhow::Result<()> {
        self.observer.row(row, result)
    }

    fn skipped(&mut self, malformed: Malformed) {
        self.observer.skipped(malformed);
    }

    fn progress(&mut self, bytes: u64, rows: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            bar.set_message(format!("{} rows", text::grouped(rows)));
        }
        self.observer.progress(bytes, rows);
    }
}
