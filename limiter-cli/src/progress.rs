//! A progress bar on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a progress bar on standard error; `None` if that is not a terminal.
pub(crate) fn bar(what: &'static str, length: Option<u64>) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(10));
        let template = match length {
            Some(_) => "{prefix} {bar:30} {percent:>3} %  {msg}  {eta}",
            None => "{prefix} {spinner} {msg}",
        };
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    })
}
