//! The name of a limiter.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::{fmt, ptr};

/// The name of a limiter: half of where its logs live. The other half is the key.
///
/// Limiters with different names never see each other's entries, even on one store. Limiters with the same name share
/// their logs. The name also labels metrics and header fields, so choose a short word for *what* is limited, as in
/// `search` or `login`; *who* is limited belongs into the key.
///
/// Names are interned: equal names are one object for the life of the process (some 100 bytes each), so that a name is
/// `Copy` and comparing two is one comparison. Do not make names from user input.
///
/// ```
/// use limiter_core::Name;
/// let name = Name::new("search");
/// assert_eq!(name, Name::from("search".to_owned()));
/// assert_eq!(name.as_str(), "search");
/// ```
#[derive(Clone, Copy)]
pub struct Name(&'static Interned);

struct Interned {
    text: &'static str,
    encoded: &'static str,
    id: u32,
}

/// Every name so far. A `Vec` would find names in linear time; there may be some hundreds.
static NAMES: Mutex<Option<HashMap<&'static str, &'static Interned>>> = Mutex::new(None);

/// The name of operations that were built without a limiter.
static DEFAULT: Interned = Interned { text: "default", encoded: "default", id: 0 };

impl Name {
    /// Returns the name with this text: any characters, of any length.
    #[must_use]
    pub fn new(text: &str) -> Self {
        if text == DEFAULT.text {
            return Self::default();
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get_or_insert_default();
        if let Some(name) = names.get(text) {
            return Self(name);
        }
        // 2^32 names would take half a terabyte.
        let id = u32::try_from(names.len() + 1).unwrap_or(u32::MAX);
        let text: &'static str = Box::leak(text.into());
        let encoded: &'static str = Box::leak(encode(text).into());
        let name: &'static Interned = Box::leak(Box::new(Interned { text, encoded, id }));
        names.insert(text, name);
        Self(name)
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.0.text
    }

    /// Returns the text with all but ASCII letters, digits, `-`, `_`, `.` and `/` percent-encoded, for stores that write names
    /// next to keys: `a:b` is `a%3Ab`. Different names have different encodings.
    #[must_use]
    pub fn encoded(&self) -> &'static str {
        self.0.encoded
    }

    /// Returns a number that no other name of this process has. Names are numbered from 1 in the order in which they are
    /// first used, so the number of a name differs between processes.
    ///
    /// A store within one process can keep this instead of the text.
    #[inline(always)]
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id
    }
}

fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'.' | b'/' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Default for Name {
    /// Returns the name `default`, that of operations built without a limiter.
    #[inline(always)]
    fn default() -> Self {
        Self(&DEFAULT)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for Name {}

impl std::hash::Hash for Name {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    #[test]
    fn equal_texts_are_one_name_on_every_thread() {
        let texts = || (0..100).map(|i| format!("name {i}")).chain(["default".to_owned(), String::new()]);
        let threads: Vec<_> =
            (0..4).map(|_| thread::spawn(move || texts().map(Name::from).collect::<Vec<_>>())).collect();
        let names: Vec<Vec<Name>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(names.iter().all(|other| *other == names[0]));
        let ids: HashSet<u32> = names[0].iter().map(Name::id).collect();
        assert_eq!(ids.len(), 102);
        assert!(texts().zip(&names[0]).all(|(text, name)| text == name.as_str()));
        assert_eq!(Name::default(), Name::new("default"));
    }

    #[test]
    fn encoded_names_are_plain_and_one_to_one() {
        for (text, encoded) in [
            ("search", "search"),
            ("default", "default"),
            ("", ""),
            ("a/b-c_d.E9", "a/b-c_d.E9"),
            ("a:b", "a%3Ab"),
            ("a%3Ab", "a%253Ab"),
            ("{*?[]} \\ ö", "%7B%2A%3F%5B%5D%7D%20%5C%20%C3%B6"),
        ] {
            assert_eq!(Name::new(text).encoded(), encoded);
        }
    }
}
