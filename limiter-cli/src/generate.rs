//! The command `generate`: writes a random trace, for trying out the program or measuring it.

mod args;
pub mod trace;

use std::io;

use crate::usage_error::UsageError;
use trace::TraceSpec;

pub use args::Generate;

/// Runs the command.
///
/// # Errors
/// [`UsageError`] for arguments out of range. Any error of the output.
pub fn run(args: &Generate) -> anyhow::Result<()> {
    let Generate { rows, keys, rate, skew, seed } = *args;
    let written = trace::write(TraceSpec { rows, keys, rate, skew, seed }, io::stdout().lock());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => UsageError(error.to_string()).into(),
        _ => error.into(),
    })
}
