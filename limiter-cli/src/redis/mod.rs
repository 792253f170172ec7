//! Replays through Redis. Rows are sent in batches; rows of different keys are in flight at the same time.

mod batch;
mod interrupt;
mod replay;
mod run;

use std::fmt;
use std::time::Duration;

use limiter_core::{Error, ErrorKind};
use limiter_redis::RedisStore;

use crate::text;

pub use replay::replay;
pub use run::RedisRun;

/// The timeout for connecting, and for each of the two attempts of a command.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// A malformed URL or prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// Connects to Redis. It must be called within a tokio runtime.
///
/// # Errors
/// [`Invalid`] for a malformed URL or prefix. Any other error if the server cannot be reached or refuses to serve.
pub async fn connect(url: &str, prefix: &str) -> anyhow::Result<RedisStore> {
    let builder = RedisStore::builder().prefix(prefix).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    // A lazy connection sends nothing, so whatever it refuses is malformed.
    if let Err(error) = builder.clone().connect_lazily(url) {
        return Err(match error.kind() {
            ErrorKind::Configuration => Invalid(error.to_string()).into(),
            _ => failed(error),
        });
    }
    builder.connect(url).await.map_err(failed)
}

/// Returns the error as one line, with the key, and without the sources, which its text repeats.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn failed(error: Error) -> anyhow::Error {
    let text = error.to_string().trim_end().replace('\n', "; ");
    // The library does not print keys. Here they are the user's own.
    let key = error.key().map_or_else(String::new, |key| format!("key \"{}\": ", text::key(key, 100)));
    anyhow::Error::msg(key + &text)
}

/// Returns a runtime that uses the current thread.
///
/// # Errors
/// If the system refuses one.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
