//! The log of changes to counts: who unblocked whom.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tracing::info;

use crate::rules::Rule;

/// The client of a connection.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its address, or `unix`.
    pub(crate) address: String,
    /// The name in its certificate.
    pub(crate) certificate: Option<String>,
}

/// The client of a request, if a listener has noted it.
#[derive(Debug)]
pub(crate) struct Caller(Option<Arc<Client>>);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get().cloned()))
    }
}

/// Logs a change. Fields of the type `str` are quoted in text, so that no key or name adds a line.
macro_rules! log {
    ($text:literal, $caller:expr, $rule:expr, $key:expr, $($field:tt)*) => {{
        let client = $caller.0.as_deref();
        let certificate = client.and_then(|client| client.certificate.as_deref());
        let client = client.map(|client| &*client.address);
        let (domain, rule) = (&*$rule.domain, &*$rule.path);
        let key = &*String::from_utf8_lossy($key);
        info!(domain, rule, key, client, certificate, $($field)*, $text);
    }};
}

impl Caller {
    /// Logs that the caller has removed all logs of a key, in which `removed` counted.
    pub(crate) fn log_reset(&self, rule: &Rule, key: &[u8], removed: &str) {
        log!("reset", self, rule, key, removed);
    }

    /// Logs that the caller has changed the cost of an entry, or refunded it.
    pub(crate) fn log_settlement(&self, rule: &Rule, key: &[u8], cost_before: u64, cost: u64) {
        match cost {
            0 => log!("refund", self, rule, key, removed = cost_before),
            _ => log!("settle", self, rule, key, cost_before, cost),
        }
    }
}
