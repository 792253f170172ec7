//! The keys of a table.

use limiter_core::Name;
use limiter_core::store::{LiveKey, LogKey, StoredKey};
use sha2::{Digest, Sha256};

/// The length of the longest key. Indexes of most databases hold it.
const MAX_LEN: usize = 255;

/// Returns the key under which a [`Table`](crate::Table) holds a log: 1 to 255 bytes.
///
/// It is `name:key`, with the [encoded name](limiter_core::Name::encoded). A longer one is `name#` and the 32 bytes of its SHA-256,
/// and without the name if that alone is longer than 200 bytes. No two logs have the same key.
///
/// A log is saved in the first format. A later format has other keys, which begin with its number as a byte: no name begins with it. So
/// old and new servers of a rolling upgrade share a table, and neither reads what the other has saved.
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

/// Returns the log that has this [`stored_key`]. `None` if no log has it.
///
/// A hashed key is a digest, and has an empty name if its own is long.
#[must_use]
pub fn read_key(stored: &[u8]) -> Option<LiveKey> {
    let end = stored.iter().position(|byte| b":#".contains(byte))?;
    let name = Name::decode(stored.get(..end)?)?;
    let rest = stored.get(end + 1..)?;
    let key = match stored.get(end)? {
        b':' => StoredKey::Known(rest.into()),
        _ if rest.len() == 32 => {
            StoredKey::Digest(rest.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        _ => return None,
    };
    Some(LiveKey { name, key })
}
