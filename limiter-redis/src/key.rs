//! Logs as Redis keys.

use limiter_core::internal::excerpt;
use limiter_core::store::{LogKey, StoredKey};
use limiter_core::{Error, ErrorKind, Name};
use percent_encoding::percent_decode;
use sha2::{Digest, Sha256};

/// The version of the format of Redis keys and entries. With the next one, all counts start at zero, and the old logs expire.
const FORMAT: u32 = 1;
/// The longest encoded key that is stored verbatim. A longer one is stored as its digest.
const MAX_VERBATIM_LEN: usize = 256;
/// Starts a digest. No escaped key starts with it.
const DIGEST_PREFIX: &[u8] = b"%sha256:";
/// The keys `prefix:1:{name:key}` of one prefix, or `prefix:1:{tag}name:key`, where 1 is [`FORMAT`].
///
/// The name, the key and the tag are escaped, so that no two logs share a Redis key and each can be read back: the prefix holds no
/// `{`, the name no `:`, and none of them a `}`.
#[derive(Clone, Debug)]
pub(crate) struct KeySpace {
    /// All up to the `{`.
    start: String,
    /// Finds the hash tag in a key.
    tag: Option<HashTag>,
}

/// Returns a part of a key, such as the tenant.
pub(crate) type HashTag = fn(&[u8]) -> &[u8];

impl KeySpace {
    pub(crate) fn new(prefix: &str, tag: Option<HashTag>) -> Result<Self, Error> {
        let allowed = |b: u8| is_plain(b) || b == b':';
        if !(1..=64).contains(&prefix.len()) || !prefix.bytes().all(allowed) {
            let text = format!(
                "key prefix {}: expected 1 to 64 letters, digits, '-', '_', '.', ':' or '/'",
                excerpt(prefix)
            );
            return Err(Error::new(ErrorKind::Configuration, text));
        }
        Ok(Self {
            start: format!("{prefix}:{FORMAT}:{{"),
            tag,
        })
    }

    /// Returns a log's Redis key.
    pub(crate) fn encode(&self, log: LogKey<'_>) -> Vec<u8> {
        let name = log.name.encoded();
        let key = log.key;
        let mut out =
            Vec::with_capacity(self.start.len() + name.len() + key.len().min(MAX_VERBATIM_LEN) + 2);
        out.extend_from_slice(self.start.as_bytes());
        if let Some(tag) = self.tag {
            push_key(&mut out, tag(key));
            out.push(b'}');
        }
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        push_key(&mut out, key);
        if self.tag.is_none() {
            out.push(b'}');
        }
        out
    }

    /// Returns the name and the key of a Redis key, `None` if it is not of this space.
    pub(crate) fn decode(&self, stored: &[u8]) -> Option<(String, StoredKey)> {
        let stored = stored.strip_prefix(self.start.as_bytes())?;
        // With or without its own tag.
        let log = match stored.strip_suffix(b"}") {
            Some(log) => log,
            None => &stored[stored.iter().position(|&byte| byte == b'}')? + 1..],
        };
        let colon = log.iter().position(|&byte| byte == b':')?;
        Some((Name::decode(&log[..colon])?, decode_key(&log[colon + 1..])?))
    }

    /// Returns the pattern with which `SCAN` matches the keys of this space, with any tags: all, or the keys of one name and a few
    /// others. Neither the prefix nor an escaped name holds a character that is special in a pattern.
    pub(crate) fn pattern(&self, name: Option<Name>) -> String {
        match name {
            None => format!("{}*", self.start),
            Some(name) => format!("{}*{}:*", self.start, name.encoded()),
        }
    }
}

/// Whether [`Name::encoded`] keeps a byte as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)
}

fn push_key(out: &mut Vec<u8>, key: &[u8]) {
    let plain = |b: &u8| *b != b'%' && *b != b'}';
    if key.len() <= MAX_VERBATIM_LEN && key.iter().all(plain) {
        out.extend_from_slice(key);
    } else if key.len() + 2 * key.iter().filter(|b| !plain(b)).count() <= MAX_VERBATIM_LEN {
        for byte in key {
            match byte {
                b'%' => out.extend_from_slice(b"%25"),
                b'}' => out.extend_from_slice(b"%7D"),
                byte => out.push(*byte),
            }
        }
    } else {
        out.extend_from_slice(DIGEST_PREFIX);
        out.extend_from_slice(hex(key).as_bytes());
    }
}

/// Returns the digest of a key in hexadecimal digits.
fn hex(key: &[u8]) -> String {
    let digest = Sha256::digest(key);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a key back, `None` if [`push_key`] would have written it differently.
fn decode_key(escaped: &[u8]) -> Option<StoredKey> {
    if let Some(hex) = escaped.strip_prefix(DIGEST_PREFIX) {
        let is_digest =
            hex.len() == 64 && hex.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        return std::str::from_utf8(hex)
            .ok()
            .filter(|_| is_digest)
            .map(|hex| StoredKey::Digest(hex.into()));
    }
    let key = percent_decode(escaped).collect::<Vec<u8>>();
    let mut written = Vec::new();
    push_key(&mut written, &key);
    (written == escaped).then(|| StoredKey::Known(key.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn space() -> KeySpace {
        KeySpace::new("limiter", None).unwrap()
    }

    fn stored(name: &str, key: &[u8]) -> Vec<u8> {
        space().encode(LogKey::new(Name::new(name), key))
    }

    fn decoded(stored: &[u8]) -> Option<(String, StoredKey)> {
        space().decode(stored)
    }

    #[test]
    fn plain_names_and_keys_are_stored_verbatim_and_others_escaped() {
        for (name, key, tag) in [
            ("search", &b"customer 7"[..], &b"search:customer 7"[..]),
            ("Search-API_v1.2/eu", b"", b"Search-API_v1.2/eu:"),
            ("", b"{", b":{"),
            ("a:b", b"a:b", b"a%3Ab:a:b"),
            ("{a}", b"{a}", b"%7Ba%7D:{a%7D"),
            ("100%", b"100%", b"100%25:100%25"),
            ("%3A", b"%7D", b"%253A:%257D"),
            ("*?[^a]\\", b"%sha256:", b"%2A%3F%5B%5Ea%5D%5C:%25sha256:"),
            ("two words\n", b"\0\xff\n*?[", b"two%20words%0A:\0\xff\n*?["),
            ("Gr\u{f6}\u{df}e", b"k", b"Gr%C3%B6%C3%9Fe:k"),
        ] {
            assert_eq!(stored(name, key), [b"limiter:1:{", tag, b"}"].concat());
            let expected = (name.to_owned(), StoredKey::Known(key.into()));
            assert_eq!(decoded(&stored(name, key)), Some(expected));
        }
    }

    #[test]
    fn a_key_that_takes_too_many_bytes_is_stored_as_its_digest() {
        let plain = *b"a{:\0\xff";
        let fills = plain
            .map(|fill| (fill, 256))
            .into_iter()
            .chain([(b'}', 85), (b'%', 85)]);
        for (fill, longest) in fills {
            for len in [0, 1, longest, longest + 1, 1 << 20] {
                let key = vec![fill; len];
                let expected = match len <= longest {
                    true => StoredKey::Known(key.clone().into()),
                    false => StoredKey::Digest(hex(&key).into()),
                };
                let stored = stored("a:b", &key);
                let expected = Some(("a:b".to_owned(), expected));
                assert_eq!(decoded(&stored), expected, "{len} of {fill}");
                assert!(stored.len() < 300 && decoded(&stored[1..]).is_none());
            }
        }
    }

    /// Names and keys over a small alphabet, to make collisions frequent.
    const ODD: &str = "[a:%{}23A5D7*\u{e4}]{0,5}";

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            ODD.prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..300)
        ]
    }

    proptest! {
        /// So no two logs share a key, with or without a hash tag.
        #[test]
        fn names_and_keys_read_back(name in prop_oneof![ODD, ".{0,20}"], key in keys()) {
            let tag: HashTag = |key| key.split(|byte| *byte == b':').next().unwrap_or(key);
            for tag in [None, Some(tag)] {
                let stored = KeySpace::new("limiter", tag).unwrap().encode(LogKey::new(Name::new(&name), &key));
                let (read, known) = decoded(&stored).unwrap();
                prop_assert_eq!(&read, &name);
                match known {
                    StoredKey::Known(known) => prop_assert_eq!(&*known, &*key),
                    StoredKey::Digest(_) => prop_assert!(key.len() > 85),
                }
                // One pair of braces, so that the tag is the hash tag.
                prop_assert_eq!(stored.iter().position(|byte| *byte == b'{'), Some("limiter:1:".len()));
                let after = stored.split(|byte| *byte == b'}').skip(1).collect::<Vec<_>>();
                prop_assert!(after.len() == 1 && (tag.is_some() || after[0].is_empty()));
            }
        }

        #[test]
        fn what_is_read_is_what_would_be_written(tag in "[a:%23A57D*b]{0,12}") {
            let written = format!("limiter:1:{{{tag}}}").into_bytes();
            if let Some((name, StoredKey::Known(key))) = decoded(&written) {
                prop_assert_eq!(stored(&name, &key), written);
            }
        }
    }

    #[test]
    fn other_keys_are_not_of_this_space() {
        for other in [
            "limiter:1:{search}",
            "limiter:1:{se arch:k}",
            "limiter:1:{%73earch:k}",
            "limiter:1:{a%3ab:k}",
            "limiter:1:{a%3:k}",
            "limiter:1:{%FF:k}",
            "limiter:1:{s:%7d}",
            "limiter:1:{s:%sha256:abc}",
            "limiter:1:{search:k",
            "limiter:1:search:k",
            // Of a later format.
            "limiter:2:{search:k}",
            "",
        ] {
            assert_eq!(decoded(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn patterns_match_all_or_one_name() {
        let space = KeySpace::new("shop:eu", None).unwrap();
        for (name, pattern) in [
            (None, "*"),
            (Some("search"), "*search:*"),
            (Some("*"), "*%2A:*"),
        ] {
            let expected = format!("shop:eu:1:{{{pattern}");
            assert_eq!(space.pattern(name.map(Name::new)), expected);
        }
    }

    #[test]
    fn bad_prefixes_are_refused() {
        let long = "p".repeat(65);
        for prefix in ["", "{", "a{b}", "a b", "a*", "\u{e4}", "a\n", &long] {
            let error = KeySpace::new(prefix, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
            let text = error.to_string();
            assert!(text.contains("expected 1 to 64 letters"), "{text}");
        }
    }
}
