//! A log's identity: a name and a key. Short keys are stored inline.
//!
//! Functions on the hot path take the two separately: a struct of them would be passed in memory.

use crate::log::LogForm;

/// A log and its name and key.
#[derive(Clone)]
pub(crate) struct KeyedLog {
    pub(crate) key: Key,
    pub(crate) log: LogForm,
}

/// The longest inline key. Name, length, tag, log and a lock fill the rest of a cache line.
const INLINE: usize = 18;

/// A name's number, and a key's bytes. An inline key saves an allocation, and a cache miss in every comparison.
#[derive(Clone)]
pub(crate) enum Key {
    Inline {
        len: u8,
        bytes: [u8; INLINE],
        name: u32,
    },
    Heap {
        name: u32,
        bytes: Box<[u8]>,
    },
}

impl Key {
    pub(crate) fn new(name: u32, key: &[u8]) -> Self {
        if key.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..key.len()].copy_from_slice(key);
            Self::Inline {
                len: key.len() as u8,
                bytes,
                name,
            }
        } else {
            Self::Heap {
                name,
                bytes: key.into(),
            }
        }
    }

    /// Returns the number of the name and the bytes of the key.
    #[inline]
    pub(crate) fn parts(&self) -> (u32, &[u8]) {
        match self {
            Self::Inline { len, bytes, name } => (*name, &bytes[..usize::from(*len).min(INLINE)]),
            Self::Heap { name, bytes } => (*name, bytes),
        }
    }

    /// Whether this is the key.
    #[inline(always)]
    pub(crate) fn is(&self, name: u32, key: &[u8]) -> bool {
        match self {
            Self::Inline {
                len,
                bytes,
                name: own,
            } => *own == name && usize::from(*len) == key.len() && is_prefix(key, bytes),
            Self::Heap { .. } => self.parts() == (name, key),
        }
    }
}

/// Whether these are the first bytes of `bytes`. Compares words: a call of `memcmp` takes longer than the rest of a look-up on AMD.
#[inline(always)]
fn is_prefix(key: &[u8], bytes: &[u8; INLINE]) -> bool {
    /// The words of `N` bytes at the beginning and at the end of the key, which overlap unless it is twice as long.
    #[inline(always)]
    fn ends<const N: usize>(key: &[u8], bytes: &[u8; INLINE]) -> Option<bool> {
        let first = key.first_chunk::<N>()?;
        let last = key.last_chunk::<N>()?;
        let own = bytes.get(..key.len())?;
        Some(own.first_chunk() == Some(first) && own.last_chunk() == Some(last))
    }
    if key.len() > 16 {
        return ends::<16>(key, bytes) == Some(true);
    }
    ends::<8>(key, bytes)
        .or_else(|| ends::<4>(key, bytes))
        .unwrap_or_else(|| key.iter().eq(&bytes[..key.len().min(3)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_any_name_and_bytes() {
        for len in [0, 1, 7, 8, 9, 15, 16, 17, 18, 19, 22, 24, 1000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37) as u8).collect();
            let key = Key::new(u32::MAX, &bytes);
            assert_eq!(key.parts(), (u32::MAX, &*bytes));
            assert!(key.is(u32::MAX, &bytes) && !key.is(u32::MAX - 1, &bytes));
            for i in 0..len {
                let mut other = bytes.clone();
                other[i] ^= 1;
                assert!(!key.is(u32::MAX, &other) && !key.is(u32::MAX, &bytes[..i]));
            }
            assert_eq!(matches!(key, Key::Inline { .. }), len <= INLINE);
        }
        assert_eq!(size_of::<Key>(), 24);
    }
}
