//! Keys, the short ones inline.

use std::hash::{Hash, Hasher};

/// How many bytes fit beside the length and a tag, and the log and a lock in the rest of a cache line.
const INLINE: usize = 22;

/// The bytes of a key. One that fits inline saves an allocation, and a cache miss on every comparison.
pub(crate) enum Key {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Key {
    pub(crate) fn new(key: &[u8]) -> Self {
        if key.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..key.len()].copy_from_slice(key);
            Self::Inline { len: key.len() as u8, bytes }
        } else {
            Self::Heap(key.into())
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => &bytes[..usize::from(*len).min(INLINE)],
            Self::Heap(bytes) => bytes,
        }
    }

    /// Without a call where the length is common: two words that overlap are all of up to 16 bytes.
    #[inline]
    pub(crate) fn is(&self, key: &[u8]) -> bool {
        if let 8..=16 = key.len()
            && let Self::Inline { len, bytes } = self
        {
            let bytes = &bytes[..key.len()];
            return usize::from(*len) == key.len()
                && bytes.first_chunk::<8>() == key.first_chunk()
                && bytes.last_chunk::<8>() == key.last_chunk();
        }
        self.is_at_length(key)
    }

    #[inline(never)]
    fn is_at_length(&self, key: &[u8]) -> bool {
        self.as_bytes() == key
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.is(other.as_bytes())
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_any_bytes() {
        for len in [0, 1, 7, 8, 9, 15, 16, 17, 21, 22, 23, 24, 1000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37) as u8).collect();
            let key = Key::new(&bytes);
            assert_eq!(key.as_bytes(), bytes);
            assert!(key.is(&bytes));
            for i in 0..len {
                let mut other = bytes.clone();
                other[i] ^= 1;
                assert!(!key.is(&other) && !key.is(&bytes[..i]));
            }
            assert_eq!(matches!(key, Key::Inline { .. }), len <= INLINE);
        }
        assert_eq!(size_of::<Key>(), 24);
    }
}
