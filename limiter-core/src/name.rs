//! The name of a limiter.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::{fmt, ptr};

/// The name of a limiter. A log belongs to a name and a key.
///
/// Limiters with different names never see each other's entries, even on one store. Limiters with the same name share
/// their logs. Choose a short word for *what* is limited, such as `search` or `login`; it also labels metrics and header
/// fields. The key identifies *who* is limited.
///
/// Names are interned for the life of the process, so a name is `Copy` and comparing two takes constant time. Do not make
/// names from user input: every new name uses memory that is never freed.
#[derive(Clone, Copy)]
pub struct Name(&'static Interned);

struct Interned {
    text: &'static str,
    encoded: &'static str,
    id: u32,
}

/// Every name that the process has used, except the default one.
static NAMES: LazyLock<Mutex<HashMap<&'static str, &'static Interned>>> =
    LazyLock::new(Mutex::default);

/// The name of operations built without a limiter. A `static`, so building one takes no lock.
static DEFAULT: Interned = Interned {
    text: "default",
    encoded: "default",
    id: 0,
};

impl Name {
    /// Returns the name with this text, which may hold any characters and have any length.
    #[must_use]
    pub fn new(text: &str) -> Self {
        if text == DEFAULT.text {
            return Self::default();
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = names.get(text) {
            return Self(name);
        }
        // Memory runs out long before 2^32 names.
        let id = u32::try_from(names.len() + 1).unwrap_or(u32::MAX);
        let text: &'static str = Box::leak(text.into());
        let encoded: &'static str = Box::leak(encode(text).into());
        let name: &'static Interned = Box::leak(Box::new(Interned { text, encoded, id }));
        names.insert(text, name);
        Self(name)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &'static str {
        self.0.text
    }

    /// Returns the text in percent-encoding, for stores that write the name in front of the key.
    ///
    /// ASCII letters, digits, `-`, `_`, `.` and `/` are not encoded: `a:b` becomes `a%3Ab`. Different names have different
    /// encodings.
    pub fn encoded(&self) -> &'static str {
        self.0.encoded
    }

    /// Returns the text that [`encoded`](Self::encoded) encodes like this. `None` if it encodes no text so.
    #[must_use]
    pub fn decode(encoded: &[u8]) -> Option<String> {
        let mut text = Vec::with_capacity(encoded.len());
        let mut rest = encoded;
        while let [first, after @ ..] = rest {
            let hex = (*first == b'%').then(|| rest.get(1..3)).flatten();
            let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
            match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => {
                    text.push(byte);
                    rest = &rest[3..];
                }
                None => {
                    text.push(*first);
                    rest = after;
                }
            }
        }
        let text = String::from_utf8(text).ok()?;
        (encode(&text).as_bytes() == encoded).then_some(text)
    }

    /// Returns the number of this name, which is unique within the process.
    ///
    /// Names are numbered from 1 in the order of first use, and `default` is 0. A name's number therefore differs between
    /// processes. An in-process store can keep the number instead of the text.
    #[inline(always)]
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// Returns the names that the process has used. Each is at the index of its [id](Self::id).
    #[doc(hidden)]
    #[must_use]
    pub fn all() -> Vec<Self> {
        let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = names.values().map(|name| Self(name)).collect();
        all.push(Self::default());
        all.sort_unstable_by_key(Self::id);
        all
    }
}

fn encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    percent_encode(text.as_bytes(), is_plain)
}

/// Returns the bytes with all but plain ASCII percent-encoded.
#[must_use]
pub fn percent_encode(bytes: &[u8], is_plain: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl Default for Name {
    /// Returns the name `default`, which operations built without a limiter use.
    #[inline(always)]
    fn default() -> Self {
        Self(&DEFAULT)
    }
}

impl<T: AsRef<str>> From<T> for Name {
    fn from(text: T) -> Self {
        Self::new(text.as_ref())
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
        let numbered = (0..100).map(|i| format!("name {i}"));
        let texts: Vec<String> = numbered.chain(["default".into(), String::new()]).collect();
        let names = || texts.iter().map(Name::from).collect::<Vec<_>>();
        let all = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(names));
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(all.iter().all(|other| *other == all[0]));
        let ids: HashSet<u32> = all[0].iter().map(Name::id).collect();
        assert_eq!(ids.len(), 102);
        assert!(texts.iter().eq(all[0].iter().map(Name::as_str)));
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
            assert_eq!(Name::decode(encoded.as_bytes()).as_deref(), Some(text));
        }
        for other in ["a:b", "a%3ab", "a%3", "%", "%FF", "%61", "%+4", "\u{f6}"] {
            assert_eq!(Name::decode(other.as_bytes()), None, "{other}");
        }
    }
}
