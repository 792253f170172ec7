//! Keys: the client that a request counts for.
//!
//! | extractor | key |
//! |---|---|
//! | [`PeerAddress`] | the address of the connection |
//! | [`ClientAddress`] | the client's address behind trusted proxies |
//! | [`Header`] | the value of a header field, such as an API key |
//! | [`Extension`] | a value that an earlier middleware left, such as the signed-in customer |
//! | [`Method`], [`Path`], [`Host`], `MatchedPath` (feature `axum`) | that part of the request |
//! | [`Constant`] | one key for all requests |
//! | a tuple of two to four extractors | their keys, separated by `,` and escaped |
//! | [`a.or(b)`](RequestKey::or) | the first that finds a key |
//! | a closure | the value that it returns |
//!
//! ```
//! use limiter_tower::RequestHead;
//! use limiter_tower::key::{Header, Method, RequestKey};
//!
//! let key = (Method, Header::new(http::HeaderName::from_static("x-api-key")));
//! let request = http::Request::get("/").header("x-api-key", "k7").body(()).unwrap();
//! assert_eq!(key.key(&RequestHead::from(&request)).unwrap().as_ref(), b"GET,k7");
//! ```

mod address;
mod extract;
mod forwarded;
mod node;
mod request;
mod trust;

pub use self::address::{ClientAddress, Peer, PeerAddress};
pub use self::extract::{Constant, RequestKey};
#[cfg(feature = "axum")]
pub use self::request::MatchedPath;
pub use self::request::{Extension, Header, Host, Method, Path};
pub use self::trust::Trust;
