//! Keys and names.

use std::fmt::Write;

use limiter_core::KeyBuf;
use sha2::{Digest, Sha256};

/// Longer keys are kept as their SHA-256, so that a client cannot fill the store with them.
const MAX_KEY_BYTES: usize = 1024;

/// Returns the key of the values that a rule leaves open. One value is itself, more are a tuple.
pub(super) fn of_open(open: &[usize], entries: &[(&str, &str)]) -> KeyBuf {
    let value = |i: &usize| entries.get(*i).map_or("", |(_, value)| *value);
    match open {
        [] => KeyBuf::new(),
        [i] => short(KeyBuf::from(value(i).as_bytes())),
        _ => of_parts(open.iter().map(value)),
    }
}

pub(super) fn of_parts<'a>(parts: impl Iterator<Item = &'a str>) -> KeyBuf {
    short(KeyBuf::from_parts(parts))
}

fn short(key: KeyBuf) -> KeyBuf {
    if key.as_ref().len() <= MAX_KEY_BYTES {
        return key;
    }
    let mut hashed = String::from("sha256:");
    for byte in Sha256::digest(key.as_ref()) {
        // Writing to a `String` cannot fail.
        let _ = write!(hashed, "{byte:02x}");
    }
    KeyBuf::from(hashed.as_bytes())
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

/// Returns the name of the limiter of overrides. No path has it: they follow a `/`.
pub(super) fn overrides_name(domain: &str) -> String {
    escaped(domain, &['/', '\\'])
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
