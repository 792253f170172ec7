//! Keys: the client that a request counts for.
//!
//! | extractor | key |
//! |---|---|
//! | [`ClientAddress`] | the client's address: the connection's, or behind trusted proxies |
//! | [`Header`] | the value of a header field, such as an API key |
//! | [`Extension`] | a value that an earlier middleware left, such as the signed-in customer or the route of axum's router |
//! | [`Constant`] | one key for all requests |
//! | a tuple of two to four extractors | their keys, separated by `,` and escaped |
//! | [`a.or(b)`](KeyExtractor::or) | the first extractor that finds a key |
//! | `Box<dyn KeyExtractor>` | the extractor in it, chosen at run time |
//! | a closure | the value that it returns, such as the path, the method or the host of a [`RequestHead`](crate::RequestHead) |
//!
//! ```
//! use limiter_tower::RequestHead;
//! use limiter_tower::key::{Header, KeyExtractor};
//!
//! let method = |head: &RequestHead<'_>| Some(head.method().to_string());
//! let key = (method, Header::new(http::HeaderName::from_static("x-api-key")));
//! let request = http::Request::get("/").header("x-api-key", "k7").body(()).unwrap();
//! assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"GET,k7");
//! ```

mod address;
mod extract;
mod forwarded;
mod node;
mod request;
mod trust;

pub use self::address::{ClientAddress, Peer};
pub use self::extract::{Constant, KeyExtractor};
pub use self::request::{Extension, Header};
pub use self::trust::Trust;
