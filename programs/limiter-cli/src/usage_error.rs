//! Usage errors on the command line.

use std::fmt;

/// An invalid argument. The program exits with status 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
