//! The keys of a table.

use limiter_core::store::LogKey;
use sha2::{Digest, Sha256};

/// The length of the longest key. Indexes of most databases hold it.
const MAX_LEN: usize = 255;

/// Returns the key under which a [`Table`](crate::Table) holds a log: 1 to 255 bytes.
///
/// It is `name:key`, with the [encoded name](limiter_core::Name::encoded). A longer one is `name#` and the 32 bytes of its SHA-256,
/// and without the name if that alone is longer than 200 bytes. No two logs have the same key.
#[must_use]
pub fn stored_key(log: LogKey<'_>) -> Vec<u8> {
    let bytes = log.to_bytes();
    if bytes.len() <= MAX_LEN {
        return bytes;
    }
    // An encoded name contains neither `:` nor `#`.
    let name = log.name.encoded();
    let name = if name.len() > 200 { "" } else { name };
    [name.as_bytes(), b"#", &Sha256::digest(bytes)].concat()
}
