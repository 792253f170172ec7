//! Lists of structured fields (RFC 9651).

use http::HeaderValue;

/// A list of a structured field, as it is written.
pub(super) struct List {
    bytes: [u8; 128],
    len: usize,
    /// All bytes, once they are more.
    spilled: Vec<u8>,
}

/// The largest Integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

impl List {
    pub(super) fn new() -> Self {
        Self { bytes: [0; 128], len: 0, spilled: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn push(&mut self, more: &[u8]) {
        let end = self.len + more.len();
        match self.bytes.get_mut(self.len..end) {
            Some(free) => free.copy_from_slice(more),
            None => {
                if self.spilled.is_empty() {
                    self.spilled.extend_from_slice(&self.bytes[..self.len]);
                }
                self.spilled.extend_from_slice(more);
            }
        }
        self.len = end;
    }

    /// Begins an item.
    pub(super) fn item(&mut self, head: &str) {
        if !self.is_empty() {
            self.push(b", ");
        }
        self.push(head.as_bytes());
    }

    pub(super) fn number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number.min(MAX_INTEGER)).as_bytes());
    }

    /// Returns the value, in an allocation of exactly its length; `None` if there is no item.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        let bytes = if self.spilled.is_empty() { &self.bytes[..self.len] } else { &self.spilled };
        if bytes.is_empty() { None } else { HeaderValue::from_bytes(bytes).ok() }
    }
}
