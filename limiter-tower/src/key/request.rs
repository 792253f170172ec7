//! Parts of a request as keys.

use std::fmt;
use std::marker::PhantomData;

use http::HeaderName;
use limiter_core::{Key, KeyBuf};

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
/// an outer layer, or use an [`Extension`](crate::key::Extension) for the customer.
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

/// A key from an extension of the request: the customer that an authentication layer left there.
///
/// This is the safest key for signed-in users: unlike a header field, a client cannot invent it. The route of axum's router is an
/// extension, even if the layer is added with `Router::layer` or `route_layer`:
/// `Extension::new(|route: &axum::extract::MatchedPath| route.as_str().to_owned())`.
///
/// ```
/// use limiter_tower::RequestHead;
/// use limiter_tower::key::{Extension, KeyExtractor};
///
/// #[derive(Clone)]
/// struct Customer(u64);
///
/// let key = Extension::new(|customer: &Customer| customer.0);
/// let mut request = http::Request::new(());
/// assert!(key.key(&RequestHead::from(&request)).is_none());
/// request.extensions_mut().insert(Customer(7));
/// assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"7");
/// ```
#[derive(Clone, Copy)]
pub struct Extension<T, F> {
    key: F,
    kind: PhantomData<fn(&T)>,
}

impl<T, F, K> Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: Key,
{
    /// Returns an extractor that makes the key of the extension `T`. A request without the extension has no key.
    #[must_use]
    pub fn new(key: F) -> Self {
        Self {
            key,
            kind: PhantomData,
        }
    }
}

impl<T, F, K> KeyExtractor for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: Key,
{
    fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        let value = head.extensions().get::<T>()?;
        Some(KeyBuf::from((self.key)(value).to_key().as_ref()))
    }

    fn kind(&self) -> &'static str {
        "extension"
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension").finish_non_exhaustive()
    }
}
