//! A progress bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a progress bar on standard error. It is hidden if that is not a terminal.
pub(crate) fn bar(what: &'static str, length: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(10));
    let template = match length {
        Some(_) => "{prefix} {bar:30} {percent:>3} %  {eta}",
        None => "{prefix} {spinner} {bytes}",
    };
    bar.set_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.with_prefix(what)
}
