//! Messages on standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// The context of an error of standard output.
pub(crate) const OUTPUT: &str = "cannot write the output";

/// Prints a message. If nobody reads standard error, the message is dropped, and the exit status still shows the result.
pub fn message(text: impl Display) {
    let _ = writeln!(io::stderr(), "limiter: {text}");
}
