//! What a log belongs to.

use std::fmt;

use crate::name::Name;

/// Names one log: the name of the limiter and the key.
///
/// Logs that differ in either never share an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogKey<'a> {
    /// The name of the limiter.
    pub name: Name,
    /// The key: arbitrary bytes of any length, possibly none.
    pub key: &'a [u8],
}

impl<'a> LogKey<'a> {
    /// Returns the log of `key` in the limiter called `name`.
    #[inline]
    #[must_use]
    pub fn new(name: Name, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { name, key: key.as_ref() }
    }

    /// Returns the name and the key as one byte string: the [encoded name](Name::encoded), `:` and the key. Different logs
    /// have different bytes, and all logs of one name have a common prefix.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.name.encoded().as_bytes(), b":", self.key].concat()
    }
}

impl fmt::Debug for LogKey<'_> {
    /// Prints the name, and of the key only its length: keys are often addresses or secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/({} bytes)", self.name, self.key.len())
    }
}
