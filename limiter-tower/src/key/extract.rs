//! The trait of keys, and keys made of others.

use limiter_core::{Key, KeyBuf};

use crate::head::RequestHead;

/// Finds the key of a request.
///
/// Closures implement it if the type of their argument is written and their key is owned, such as a number or a `String`:
///
/// ```
/// use limiter_tower::RequestHead;
/// use limiter_tower::key::KeyExtractor;
///
/// let tenant = |head: &RequestHead<'_>| Some(head.host()?.split('.').next()?.to_owned());
/// let request = http::Request::get("https://acme.example.com/").body(()).unwrap();
/// assert_eq!(tenant.key(&RequestHead::from(&request)).unwrap().as_ref(), b"acme");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract a key from a request",
    label = "expected an extractor of `limiter_tower::key`, a tuple of extractors or a closure",
    note = "write a closure with the type of its argument: `|head: &RequestHead<'_>| …`",
    note = "a closure returns an owned key, such as `Some(head.path().to_owned())`, because a `&str` cannot outlive the request"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key, or `None` if the request has none. The rule's [`MissingKey`](crate::MissingKey) decides then.
    fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf>;

    /// Returns the kind of the key, by which [`or`](Self::or) distinguishes keys. Default: `key`.
    fn kind(&self) -> &str {
        "key"
    }

    /// Returns the key together with its kind, as [`or`](Self::or) stores it: `x-api-key,k7`.
    fn tagged_key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        self.key(head).map(|key| (self.kind(), &key).to_key())
    }

    /// Falls back to `other` for requests without a key.
    ///
    /// The kind of the extractor becomes part of the key, so an API key that looks like an address is never the key of that
    /// address. Keys of the same kind are not distinguished.
    ///
    /// ```
    /// use limiter_tower::RequestHead;
    /// use limiter_tower::key::{Constant, Header, KeyExtractor};
    ///
    /// let key = Header::new(http::HeaderName::from_static("x-api-key")).or(Constant::new("anonymous"));
    /// let request = http::Request::get("/").body(()).unwrap();
    /// assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"constant,anonymous");
    /// ```
    fn or<K: KeyExtractor>(self, other: K) -> impl KeyExtractor
    where
        Self: Sized,
    {
        Or {
            first: self,
            second: other,
        }
    }
}

impl<F, K> KeyExtractor for F
where
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
    K: Key,
{
    fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        self(head).map(|key| KeyBuf::from(key.to_key().as_ref()))
    }
}

macro_rules! tuple {
    ($($part:ident . $i:tt),*) => {
        impl<$($part: KeyExtractor),*> KeyExtractor for ($($part,)*) {
            /// Returns the keys of all parts, or `None` if one has none. Different parts are different keys.
            fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
                Some(($(self.$i.key(head)?,)*).to_key())
            }
        }
    };
}

tuple!(A.0, B.1);
tuple!(A.0, B.1, C.2);
tuple!(A.0, B.1, C.2, D.3);

struct Or<A, B> {
    first: A,
    second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        self.first
            .tagged_key(head)
            .or_else(|| self.second.tagged_key(head))
    }

    /// The key has its kind already, so that a chain of three has one kind and not two.
    fn tagged_key(&self, head: &RequestHead<'_>) -> Option<KeyBuf> {
        self.key(head)
    }
}

/// The same key for every request: a limit for the whole server.
#[derive(Clone, Debug)]
pub struct Constant(KeyBuf);

impl Constant {
    /// Returns an extractor whose key is always `key`.
    #[must_use]
    pub fn new(key: impl Key) -> Self {
        Self(KeyBuf::from(key.to_key().as_ref()))
    }
}

impl KeyExtractor for Constant {
    fn key(&self, _: &RequestHead<'_>) -> Option<KeyBuf> {
        Some(self.0.clone())
    }

    fn kind(&self) -> &'static str {
        "constant"
    }
}
