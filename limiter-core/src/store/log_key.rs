//! A log's identity: a limiter's name and a key.

use std::fmt;

use crate::name::Name;

/// A log's identity: the limiter's name and the key.
///
/// Logs that differ in either share no entries.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogKey<'a> {
    /// The limiter's name.
    pub name: Name,
    /// The key: any bytes, of any length, possibly empty.
    pub key: &'a [u8],
}

impl<'a> LogKey<'a> {
    /// Returns the identity of the log of `key` in the limiter called `name`.
    #[inline]
    #[must_use]
    pub fn new(name: Name, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            name,
            key: key.as_ref(),
        }
    }

    /// Returns the name and the key as one byte string: the [encoded name](Name::encoded), `:` and the key.
    ///
    /// Different logs have different bytes. All logs of one name share a prefix.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.name.encoded().as_bytes(), b":", self.key].concat()
    }
}

impl fmt::Debug for LogKey<'_> {
    /// Prints the name and the length of the key. The key itself is often an address or a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/({} bytes)", self.name, self.key.len())
    }
}
