//! Parts of a request as keys.

use std::fmt;
use std::marker::PhantomData;

use http::HeaderName;
use limiter_core::{Key, KeyBuf};

use super::extract::RequestKey;
use crate::head::RequestHead;

/// The longest value that is a key by default, in bytes.
const MAX_LEN: usize = 256;

/// The value of a header field: an API key.
///
/// A request without the field, with an empty value, with the field on several lines, or with a value of more than
/// [`max_len`](Self::max_len) bytes has no key. The key is the value as it came, byte by byte.
///
/// A client chooses its header fields. Unless a layer in front rejects unknown API keys, a client escapes the limit with a new
/// one for each request: then put the customer into an [`Extension`](crate::key::Extension) instead.
///
/// ```
/// use limiter_tower::RequestHead;
/// use limiter_tower::key::{Header, RequestKey};
///
/// let key = Header::new(http::HeaderName::from_static("x-api-key"));
/// let request = http::Request::get("/").header("X-Api-Key", "k7").body(()).unwrap();
/// assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"k7");
/// ```
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    max_len: usize,
}

impl Header {
    /// Returns an extractor of the field `name`.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self { name, max_len: MAX_LEN }
    }

    /// Sets the longest value that is a key, in bytes. Default: 256, so that a store holds no megabytes of invented keys.
    #[must_use]
    pub const fn max_len(mut self, bytes: usize) -> Self {
        self.max_len = bytes;
        self
    }
}

impl RequestKey for Header {
    fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        let mut lines = head.headers().get_all(&self.name).iter();
        let value = lines.next()?.as_bytes();
        (lines.next().is_none() && !value.is_empty() && value.len() <= self.max_len).then(|| KeyBuf::from(value))
    }

    fn kind(&self) -> &str {
        self.name.as_str()
    }
}

/// A key from an extension of the request: the customer that an authentication layer left there.
///
/// This is the safest key for signed-in users: unlike a header field, a client cannot invent it.
///
/// ```
/// use limiter_tower::RequestHead;
/// use limiter_tower::key::{Extension, RequestKey};
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
        Self { key, kind: PhantomData }
    }
}

impl<T, F, K> RequestKey for Extension<T, F>
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

/// Defines extractors without options: their kind, and how they find the key.
macro_rules! extractors {
    ($($(#[$attribute:meta])* $name:ident: $kind:literal, |$head:ident| $key:expr;)*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        $(#[$attribute])*
        impl RequestKey for $name {
            fn key(&self, $head: &RequestHead<'_>) -> Option<KeyBuf> {
                $key
            }

            fn kind(&self) -> &'static str {
                $kind
            }
        }
    )*};
}

extractors! {
    /// The method: `GET`.
    Method: "method", |head| Some(head.method().as_str().as_bytes().into());

    /// The path: `/customers/7`. A client can invent any number of paths, and each one is a separate key. Prefer `MatchedPath`
    /// where there is a router.
    Path: "path", |head| Some(head.path().as_bytes().into());

    /// The host as the client wrote it, in lower case: [`RequestHead::host`].
    Host: "host", |head| Some(head.host()?.to_ascii_lowercase().as_bytes().into());

    /// The route that axum's router matched: `/customers/{id}`. A request that matched none has no key.
    ///
    /// The layer must be added with `Router::layer` or `route_layer`, so that it runs after the match.
    #[cfg(feature = "axum")]
    MatchedPath: "route", |head| Some(head.extensions().get::<axum::extract::MatchedPath>()?.as_str().as_bytes().into());
}
