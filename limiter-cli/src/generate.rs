//! The command `generate`: writes a made-up trace, to try the program and to measure it.

mod args;
pub mod trace;

use std::io;

use crate::usage::UsageError;
use trace::Shape;

pub use args::Generate;

/// Runs the command.
///
/// # Errors
/// [`UsageError`] for arguments out of range; any error of the output.
pub fn run(args: &Generate) -> anyhow::Result<()> {
    let Generate { rows, keys, rate, skew, seed } = *args;
    let written = trace::write(Shape { rows, keys, rate, skew, seed }, io::stdout().lock());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => UsageError(error.to_string()).into(),
        _ => error.into(),
    })
}
