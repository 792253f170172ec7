//! Users' keys as Redis keys.

use std::fmt;

use limiter_core::{Error, ErrorKind};
use sha2::{Digest, Sha256};

/// The longest encoded key that is stored verbatim; a longer one is stored by its digest.
const LONGEST: usize = 256;
/// Starts the tag of a digest; an escaped key never has it.
const DIGEST: &[u8] = b"%sha256:";

/// `prefix:{tag}`: the tag is the user's key with `%` and `}` escaped, or its digest.
///
/// The prefix holds no brace and the tag no closing one, so both can be read back, and no two keys meet.
#[derive(Clone, Debug)]
pub(crate) struct KeySpace {
    start: Box<[u8]>,
}

impl KeySpace {
    pub(crate) fn new(prefix: &str) -> Result<Self, Error> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/".contains(&b);
        if !(1..=64).contains(&prefix.len()) || !prefix.bytes().all(allowed) {
            let found: String = prefix.chars().take(64).collect();
            let text = format!(
                "key prefix \"{}\": expected 1 to 64 letters, digits, '-', '_', '.', ':' or '/'",
                found.escape_debug()
            );
            return Err(Error::new(ErrorKind::Configuration, text));
        }
        Ok(Self { start: format!("{prefix}:{{").into_bytes().into() })
    }

    /// The Redis key of a user's key.
    pub(crate) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.start.len() + key.len().min(LONGEST) + 1);
        out.extend_from_slice(&self.start);
        let plain = |b: &u8| *b != b'%' && *b != b'}';
        if key.len() <= LONGEST && key.iter().all(plain) {
            out.extend_from_slice(key);
        } else if key.len() + 2 * key.iter().filter(|b| !plain(b)).count() <= LONGEST {
            for byte in key {
                match byte {
                    b'%' => out.extend_from_slice(b"%25"),
                    b'}' => out.extend_from_slice(b"%7D"),
                    byte => out.push(*byte),
                }
            }
        } else {
            out.extend_from_slice(DIGEST);
            for byte in Sha256::digest(key) {
                out.extend_from_slice(format!("{byte:02x}").as_bytes());
            }
        }
        out.push(b'}');
        out
    }

    /// The user's key of a Redis key, `None` if the key is not of this space.
    pub(crate) fn decode(&self, stored: &[u8]) -> Option<StoredKey> {
        let tag = stored.strip_prefix(&*self.start)?.strip_suffix(b"}")?;
        if let Some(hex) = tag.strip_prefix(DIGEST) {
            let hex = std::str::from_utf8(hex).ok().filter(|hex| hex.len() == 64)?;
            return Some(StoredKey::Digest(hex.into()));
        }
        let mut key = Vec::with_capacity(tag.len());
        let mut rest = tag;
        while let Some((byte, tail)) = rest.split_first() {
            let (byte, tail) = match byte {
                b'}' => return None,
                b'%' => match (tail.strip_prefix(b"25"), tail.strip_prefix(b"7D")) {
                    (Some(tail), _) => (b'%', tail),
                    (_, Some(tail)) => (b'}', tail),
                    _ => return None,
                },
                byte => (*byte, tail),
            };
            key.push(byte);
            rest = tail;
        }
        Some(StoredKey::Known(key.into()))
    }

    /// The pattern that `SCAN` matches the keys of this space with. The prefix holds nothing special to a pattern.
    pub(crate) fn pattern(&self) -> Vec<u8> {
        [&*self.start, b"*}"].concat()
    }
}

/// A key as it can be read back from Redis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum StoredKey {
    /// The user's key.
    Known(Box<[u8]>),
    /// The SHA-256 of a user's key that is too long to be stored as it is (over 256 bytes), in hexadecimal digits.
    Digest(Box<str>),
}

impl fmt::Display for StoredKey {
    /// The key with everything but printable ASCII escaped, or `sha256:` and the digest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(key) => write!(f, "{}", key.escape_ascii()),
            Self::Digest(hex) => write!(f, "sha256:{hex}"),
        }
    }
}

/// A key for a message: escaped, and cut if it is long.
pub(crate) fn shown(key: &[u8]) -> String {
    let dots = if key.len() > 100 { "…" } else { "" };
    format!("\"{}{dots}\"", key[..key.len().min(100)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(key: &[u8]) -> Vec<u8> {
        let space = KeySpace::new("p").unwrap();
        let stored = space.encode(key);
        stored.strip_prefix(b"p:{").and_then(|s| s.strip_suffix(b"}")).unwrap().to_vec()
    }

    #[test]
    fn safe_keys_are_stored_verbatim_and_others_escaped() {
        for (key, stored) in [
            (&b"customer 7"[..], &b"customer 7"[..]),
            (b"", b""),
            (b"{", b"{"),
            (b"{a}", b"{a%7D"),
            (b"100%", b"100%25"),
            (b"%7D", b"%257D"),
            (b"%sha256:", b"%25sha256:"),
            (b"\0\xff\r\n*?[", b"\0\xff\r\n*?["),
        ] {
            assert_eq!(tag(key), stored);
        }
    }

    #[test]
    fn every_key_reads_back_or_shows_its_digest() {
        let space = KeySpace::new("limiter").unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for len in [0, 1, 2, 85, 86, 100, 255, 256, 257, 258, 1 << 20] {
            for fill in [b'a', b'{', b'}', b'%', b':', 0, 255] {
                let key = vec![fill; len];
                let stored = space.encode(&key);
                assert!(stored.len() < 300);
                assert!(seen.insert(stored.clone()) || len == 0, "{len} of {fill}");
                match space.decode(&stored).unwrap() {
                    StoredKey::Known(known) => assert_eq!(*known, *key),
                    StoredKey::Digest(hex) => assert!(len > 85 && hex.len() == 64),
                }
                assert!(space.decode(&stored[1..]).is_none());
            }
        }
    }

    #[test]
    fn a_prefix_reaches_no_key_of_another() {
        let spaces: Vec<KeySpace> = ["a", "a:b", "a:", "b", "a/b"].map(|p| KeySpace::new(p).unwrap()).into();
        for (i, one) in spaces.iter().enumerate() {
            for (j, other) in spaces.iter().enumerate() {
                for key in [&b""[..], b"b:{x", b":{", b"}", b"a:{b}"] {
                    assert_eq!(other.decode(&one.encode(key)).is_some(), i == j);
                }
            }
        }
    }

    #[test]
    fn bad_prefixes_are_refused() {
        let long = "p".repeat(65);
        for prefix in ["", "{", "a{b}", "a b", "a*", "ä", "a\n", &long] {
            let error = KeySpace::new(prefix).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains("expected 1 to 64 letters"), "{error}");
        }
    }
}
