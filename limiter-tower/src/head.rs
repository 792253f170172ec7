//! The view of a request and its response for extractors and hooks.

use std::fmt;

use http::header::{AsHeaderName, CONTENT_LENGTH, HOST};
use http::uri::Authority;
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body;

/// A view of a request without its body: method, path, host, header fields and extensions.
///
/// It is `Copy` and independent of the body's type, so extractors and hooks need no type parameters. It is made from a
/// reference to an `http::Request`.
///
/// ```
/// use limiter_tower::RequestHead;
/// let request = http::Request::get("https://example.com/search?q=x").header("x-api-key", "k7").body(()).unwrap();
/// let head = RequestHead::from(&request);
/// assert_eq!((head.method().as_str(), head.path(), head.host()), ("GET", "/search", Some("example.com")));
/// assert_eq!(head.header("x-api-key").unwrap(), "k7");
/// ```
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// Returns the path, without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.uri.path()
    }

    /// Returns the host and the port, if given: of the request's target, otherwise of the field `Host`. The client chooses it.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        let host = |authority: &'a Authority| authority.as_str().rsplit('@').next();
        self.uri
            .authority()
            .and_then(host)
            .or_else(|| self.headers.get(HOST)?.to_str().ok())
    }

    /// Returns the header fields.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the first value of a header field.
    #[must_use]
    pub fn header(&self, name: impl AsHeaderName) -> Option<&'a HeaderValue> {
        self.headers.get(name)
    }

    /// Returns the extensions.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}

impl<'a, B> From<&'a Request<B>> for RequestHead<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl fmt::Debug for RequestHead<'_> {
    /// Prints the method only: paths and header fields may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", self.method)
            .finish_non_exhaustive()
    }
}

/// A view of a response without its body: status, header fields and extensions.
#[derive(Clone, Copy)]
pub struct ResponseHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
    exact_len: Option<u64>,
}

impl<'a> ResponseHead<'a> {
    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the header fields.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the extensions.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// Returns the length of the body in bytes, if it is known before the body is sent.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.exact_len.or_else(|| {
            self.headers
                .get(CONTENT_LENGTH)?
                .to_str()
                .ok()?
                .parse()
                .ok()
        })
    }
}

impl<'a, B: Body> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        let exact_len = response.body().size_hint().exact();
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
            exact_len,
        }
    }
}

impl fmt::Debug for ResponseHead<'_> {
    /// Prints the status only: header fields may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseHead")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
