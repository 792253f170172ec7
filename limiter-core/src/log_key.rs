//! A log's identity: a limiter's name and a key. And where a store keeps it.

use std::fmt;
use std::sync::Arc;

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

/// Where a store keeps a log. See [`WindowStore::place`](crate::WindowStore::place).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogPlace {
    /// The name of the part of the store that fails alone, such as a master of a Redis Cluster: `10.0.0.7:6379`. `None` if the store
    /// fails as a whole, or if the part is unknown.
    pub node: Option<Arc<str>>,
    /// The logs of one group can change together: in Redis, those of one server, or of one hash slot of a Cluster. `None` if the log
    /// changes only alone.
    pub group: Option<u64>,
    /// The address of the outermost store that says so.
    through: usize,
}

impl LogPlace {
    /// Returns a place on a node, of a log that changes only alone.
    #[must_use]
    pub const fn on(node: Option<Arc<str>>) -> Self {
        Self {
            node,
            group: None,
            through: 0,
        }
    }

    /// Adds the group.
    #[must_use]
    pub const fn in_group(mut self, group: Option<u64>) -> Self {
        self.group = group;
        self
    }

    /// Returns the same place through a store. Two stores with different states, such as wrappers, do not share a group.
    #[must_use]
    pub fn through<S: ?Sized>(mut self, store: &S) -> Self {
        self.through = std::ptr::from_ref(store).addr();
        self
    }

    /// Returns whether [`WindowStore::apply_all`](crate::WindowStore::apply_all) takes operations on both logs.
    #[must_use]
    pub fn goes_with(&self, other: &Self) -> bool {
        self.group.is_some() && (self.group, self.through) == (other.group, other.through)
    }
}

impl fmt::Debug for LogKey<'_> {
    /// Prints the name and the length of the key. The key itself is often an address or a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/({} bytes)", self.name, self.key.len())
    }
}
