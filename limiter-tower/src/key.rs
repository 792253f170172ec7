//! Keys: the client that a request counts for.
//!
//! | extractor | key |
//! |---|---|
//! | [`ClientAddress`] | the client's address: the connection's, or behind trusted proxies |
//! | [`Header`] | the value of a header field, such as an API key |
//! | [`Constant`] | one key for all requests |
//! | a tuple of two to four extractors | their keys, separated by `,` and escaped |
//! | [`a.or(b)`](KeyExtractor::or) | the first extractor that finds a key |
//! | a closure | the value that it returns, such as the path or the host of a [`RequestHead`](crate::RequestHead), or an extension |
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
//!
//! The safest key is the customer that an authentication layer left in an extension: unlike a header field, a client cannot invent it.
//! The route of axum's router is an extension, too, even if the layer is added with `Router::layer` or `route_layer`.
//!
//! ```
//! # use limiter_tower::RequestHead;
//! #[derive(Clone)]
//! struct Customer(u64);
//!
//! let customer = |head: &RequestHead<'_>| Some(head.extensions().get::<Customer>()?.0);
//! let route = |head: &RequestHead<'_>| Some(head.extensions().get::<axum::extract::MatchedPath>()?.as_str().to_owned());
//! # let _: (&dyn limiter_tower::key::KeyExtractor, &dyn limiter_tower::key::KeyExtractor) = (&customer, &route);
//! ```

mod address;
mod extract;
mod forwarded;
mod node;
mod request;
mod trust;

pub use self::address::{ClientAddress, Peer};
pub use self::extract::{Constant, KeyExtractor};
pub use self::request::Header;
pub use self::trust::Trust;
