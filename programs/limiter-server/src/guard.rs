//! Access to the admin listener.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use base64::prelude::{BASE64_STANDARD, Engine};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use sha2::{Digest, Sha256};

use crate::http::Refusal;

/// The header that every request that changes something must have.
///
/// A browser lets a foreign page send it only if the server agrees, which this one never does.
pub const HEADER: &str = "x-limiter-admin";

type Hash = [u8; 32];

/// The rules for access to a listener.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    token: Option<Arc<ArcSwap<Hash>>>,
    local: bool,
    hosts: Arc<[String]>,
}

impl Guard {
    /// Returns the guard of a listener with this token, which `hosts` also name. `local` says that it listens on a loopback
    /// address.
    #[must_use]
    pub fn new(token: Option<&str>, local: bool, hosts: &[String]) -> Self {
        // The time of comparing hashes does not reveal the token.
        Self {
            token: token.map(|token| Arc::new(ArcSwap::from_pointee(hash(token)))),
            local,
            hosts: hosts.into(),
        }
    }

    /// Replaces the token of all clones, if there was one.
    pub(crate) fn set_token(&self, token: &str) {
        if let Some(current) = &self.token {
            current.store(Arc::new(hash(token)));
        }
    }

    fn refusal(&self, request: &Request) -> Option<(StatusCode, &'static str)> {
        let headers = request.headers();
        // HTTP/2 has the host in the URI. HTTP/1.0 may omit it, but no browser speaks it.
        let hosts = headers.get_all(header::HOST).iter();
        let hosts = hosts.map(|host| host.to_str().unwrap_or_default());
        let target = request.uri().authority().map(Authority::as_str);
        if !target
            .into_iter()
            .chain(hosts)
            .all(|host| self.is_known(host))
        {
            return Some((
                StatusCode::MISDIRECTED_REQUEST,
                "the host must be localhost, an IP address or an --admin-host",
            ));
        }
        let reads = is_read(request);
        if !reads && !headers.contains_key(HEADER) {
            return Some((
                StatusCode::FORBIDDEN,
                "the header x-limiter-admin is missing",
            ));
        }
        match &self.token {
            _ if reads && self.local => None,
            None if reads || self.local => None,
            None => Some((
                StatusCode::FORBIDDEN,
                "changes require --admin-token-file: others can reach this listener",
            )),
            Some(token) if sent(headers).as_deref().map(hash) == Some(**token.load()) => None,
            Some(_) => Some((
                StatusCode::UNAUTHORIZED,
                "the admin token is missing or wrong",
            )),
        }
    }

    /// Returns `true` if a host cannot be a foreign page's name for this machine.
    fn is_known(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        let is_named = |known: &str| name.eq_ignore_ascii_case(known);
        address.parse::<IpAddr>().is_ok()
            || is_named("localhost")
            || self.hosts.iter().any(|host| is_named(host))
    }
}

/// Protects the routes of the admin listener.
///
/// | listener | request | needs |
/// |---|---|---|
/// | any | any | a `Host` that is an IP address, `localhost` or one of `hosts`, which keeps rebound names of foreign pages out |
/// | any | all methods except `GET` and `HEAD` | [`HEADER`], and the token if there is one |
/// | not local | all methods | the token if there is one |
/// | not local, no token | all methods except `GET` and `HEAD` | is refused |
///
/// The token is `authorization: Bearer TOKEN`, or the password of `Basic`, for which browsers ask.
pub fn guarded(routes: Router, guard: Guard) -> Router {
    routes.layer(from_fn(move |request: Request, next: Next| {
        let refusal = guard.refusal(&request);
        async move {
            let Some((status, error)) = refusal else {
                return next.run(request).await;
            };
            let mut response = Refusal::new(status, error).into_response();
            if status == StatusCode::UNAUTHORIZED && is_read(&request) {
                let challenge =
                    HeaderValue::from_static("Basic realm=\"the admin token is the password\"");
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, challenge);
            }
            response
        }
    }))
}

fn is_read(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token).into()
}

/// Returns the token that a request sends.
fn sent(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(token.trim().to_owned()),
        "basic" => {
            let text = String::from_utf8(BASE64_STANDARD.decode(token.trim()).ok()?).ok()?;
            Some(text.split_once(':')?.1.to_owned())
        }
        _ => None,
    }
}
