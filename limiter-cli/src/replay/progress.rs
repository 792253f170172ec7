//! A progress bar on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::outcome::{Observer, Outcome};
use crate::text;
use crate::trace::{Malformed, Row};

/// Passes everything on, and shows how far the replay is if standard error is a terminal.
pub(crate) struct WithProgress<O> {
    pub(crate) observer: O,
    bar: Option<ProgressBar>,
}

impl<O> WithProgress<O> {
    pub(crate) fn new(observer: O, what: &'static str, bytes: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::stderr_with_hz(10));
            let template = match bytes {
                Some(_) => "{prefix} {bar:30} {percent:>3} %  {msg}  {eta}",
                None => "{prefix} {spinner} {msg}",
            };
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(what);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { observer, bar }
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
    fn row(&mut self, row: &Row<'_>, outcome: &Outcome) -> anyhow::Result<()> {
        self.observer.row(row, outcome)
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
