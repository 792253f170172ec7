//! Who may use the admin listener.

use std::net::IpAddr;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use sha2::{Digest, Sha256};

use crate::http::Refusal;

/// The header that every request that changes something must have.
///
/// A browser lets a foreign page send it only if the server agrees, which this one never does.
pub const HEADER: &str = "x-limiter-admin";

type Hash = [u8; 32];

/// Protects the routes of the admin listener. `local` says that it listens on a loopback address.
///
/// | listener | request | needs |
/// |---|---|---|
/// | local | any | a `Host` that is an IP address or `localhost`, which keeps rebound names of foreign pages out |
/// | any | all methods except `GET` and `HEAD` | [`HEADER`], and `authorization: Bearer TOKEN` if there is a token |
/// | not local, no token | all methods except `GET` and `HEAD` | is refused |
pub fn guarded(routes: Router, token: Option<&str>, local: bool) -> Router {
    // Comparing hashes takes a time that says nothing about the token.
    let token = token.map(hash);
    routes.layer(from_fn(move |request: Request, next: Next| async move {
        match refusal(token, local, &request) {
            None => next.run(request).await,
            Some((status, error)) => Refusal::new(status, error).into_response(),
        }
    }))
}

fn refusal(token: Option<Hash>, local: bool, request: &Request) -> Option<(StatusCode, &'static str)> {
    let headers = request.headers();
    if local && !is_local(request.uri(), headers) {
        return Some((StatusCode::MISDIRECTED_REQUEST, "the host must be localhost or an IP address"));
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    if !headers.contains_key(HEADER) {
        return Some((StatusCode::FORBIDDEN, "the header x-limiter-admin is missing"));
    }
    match token {
        None if local => None,
        None => Some((StatusCode::FORBIDDEN, "changes need --admin-token-file, as others can reach this listener")),
        Some(token) if sent(headers).map(hash) == Some(token) => None,
        Some(_) => Some((StatusCode::UNAUTHORIZED, "the admin token is missing or wrong")),
    }
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token).into()
}

/// Returns the token that a request sends.
fn sent(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns whether the host that the request names cannot be a foreign page's name for this machine.
fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // HTTP/2 names the host in the URI. HTTP/1.0 may name none, but no browser speaks it.
    let Some(host) = uri.authority().map(http::uri::Authority::as_str).or(host) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}
