//! Parts of a request as keys.

use http::HeaderName;
use limiter_core::KeyBuf;

use super::extract::KeyExtractor;
use crate::head::RequestHead;

/// The longest value that is a key, in bytes: a store must not hold megabytes of invented keys.
const MAX_LEN: usize = 256;

/// The value of a header field: an API key.
///
/// A request without the field, with an empty value, with the field on several lines, or with a value of more than 256 bytes has no
/// key. The key is the value as it came, byte by byte.
///
/// A client chooses its header fields, and can escape the limit with a new API key for each request. Reject unknown API keys in
/// an outer layer, or let a closure return the customer that authentication left in an [extension](RequestHead::extensions).
///
/// ```
/// use limiter_tower::RequestHead;
/// use limiter_tower::key::{Header, KeyExtractor};
///
/// let key = Header::new(http::HeaderName::from_static("x-api-key"));
/// let request = http::Request::get("/").header("X-Api-Key", "k7").body(()).unwrap();
/// assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"k7");
/// ```
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// Returns an extractor of the field `name`.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }
}

impl KeyExtractor for Header {
    fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        let mut lines = head.headers().get_all(&self.0).iter();
        let value = lines.next()?.as_bytes();
        (lines.next().is_none() && !value.is_empty() && value.len() <= MAX_LEN)
            .then(|| KeyBuf::from(value))
    }

    fn kind(&self) -> &str {
        self.0.as_str()
    }
}
