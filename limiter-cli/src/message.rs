//! Messages on standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a message. If nobody reads standard error, the message is dropped, and the exit status still tells the result.
pub fn message(text: impl Display) {
    let _ = writeln!(io::stderr(), "limiter: {text}");
}
