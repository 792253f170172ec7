//! Lists of structured fields (RFC 9651).

use http::HeaderValue;
use smallvec::SmallVec;

/// A structured field's list in text form. Up to 128 bytes are stored inline.
#[derive(Default)]
pub(super) struct List(SmallVec<[u8; 128]>);

impl List {
    /// A structured field's largest Integer.
    pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

    /// Returns the value of a list of these items.
    pub(super) fn of<'a>(items: impl Iterator<Item = &'a String>) -> Option<HeaderValue> {
        let mut list = Self::default();
        items.for_each(|item| list.item(item));
        list.value()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn push(&mut self, more: &[u8]) {
        self.0.extend_from_slice(more);
    }

    /// Begins an item.
    pub(super) fn item(&mut self, head: &str) {
        if !self.is_empty() {
            self.push(b", ");
        }
        self.push(head.as_bytes());
    }

    pub(super) fn number(&mut self, number: u64) {
        self.push(
            itoa::Buffer::new()
                .format(number.min(Self::MAX_INTEGER))
                .as_bytes(),
        );
    }

    /// Returns the list as text. `None` if there is no item.
    pub(super) fn text(&self) -> Option<&str> {
        str::from_utf8(&self.0).ok().filter(|text| !text.is_empty())
    }

    /// Returns the value, in an allocation of exactly its length. `None` if there is no item.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        if self.is_empty() {
            None
        } else {
            HeaderValue::from_bytes(&self.0).ok()
        }
    }
}
