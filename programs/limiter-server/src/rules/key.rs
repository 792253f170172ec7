//! Keys and names.

use std::borrow::Cow;

use limiter_core::KeyBuf;
use limiter_core::internal::percent_encode;
use sha2::{Digest, Sha256};

/// Longer keys are kept as their SHA-256, so that a client cannot fill the store with them.
const MAX_KEY_BYTES: usize = 1024;
/// The prefix of hashed keys. Keys that begin with it are also hashed, so that no key is another one's hash.
const HASHED: &str = "sha256:";
/// The prefix of the texts of values that are not UTF-8.
const BYTES: &str = "bytes:";

/// Returns the key of the values that a rule leaves open. One value is itself, more are a tuple.
pub(super) fn of_open<B: AsRef<[u8]>>(open: &[usize], entries: &[(B, B)]) -> KeyBuf {
    let value = |i: &usize| {
        entries
            .get(*i)
            .map_or(&b""[..], |(_, value)| value.as_ref())
    };
    match open {
        [] => KeyBuf::default(),
        [i] => short(KeyBuf::from(text(value(i)).as_bytes())),
        _ => of_parts(open.iter().map(value)),
    }
}

pub(super) fn of_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> KeyBuf {
    short(KeyBuf::from_parts(
        parts.map(|part| text(part).into_owned()),
    ))
}

/// Returns bytes as a text. Different bytes have different texts: what is not UTF-8, or begins like such a text, is `bytes:` and
/// the bytes, in which `%` and what is not UTF-8 are `%` and two hexadecimal digits.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) if !text.starts_with(BYTES) => return Cow::Borrowed(text),
        _ => {}
    }
    let mut out = BYTES.to_owned();
    for chunk in bytes.utf8_chunks() {
        out.push_str(&chunk.valid().replace('%', "%25"));
        out.push_str(&percent_encode(chunk.invalid(), |_| false));
    }
    Cow::Owned(out)
}

fn short(key: KeyBuf) -> KeyBuf {
    hashed(key.as_ref()).map_or(key, |text| KeyBuf::from(text.as_bytes()))
}

/// Returns the hash of a key or a label that must not be kept as it is.
pub(super) fn hashed(bytes: &[u8]) -> Option<String> {
    let is_kept = bytes.len() <= MAX_KEY_BYTES && !bytes.starts_with(HASHED.as_bytes());
    (!is_kept).then(|| {
        let digest = Sha256::digest(bytes);
        digest.iter().fold(HASHED.to_owned(), |text, byte| {
            text + &format!("{byte:02x}")
        })
    })
}

/// Returns a key and its value as part of a path: `key=value`. Different paths have different texts.
pub(super) fn path_of(key: &str, value: Option<&str>) -> String {
    let mut path = escaped(key, &[',', '=', '\\']);
    if let Some(value) = value {
        path.push('=');
        path.push_str(&escaped(value, &[',', '\\']));
    }
    path
}

/// Returns the name of the limiter of a path.
pub(super) fn limiter_name(domain: &str, path: &str) -> String {
    format!("{}/{path}", escaped(domain, &['/', '\\']))
}

fn escaped(text: &str, special: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if special.contains(&char) {
            out.push('\\');
        }
        out.push(char);
    }
    out
}
