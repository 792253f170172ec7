//! Connections to Redis.

use std::time::Duration;

use limiter_core::Error;
use limiter_redis::{RedisStore, is_redis_url};

use crate::text;
use crate::usage_error::UsageError;

/// The timeout for connecting, and for each of the two attempts of a command.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the scheme of a URL in a command-line argument.
///
/// # Errors
/// States what was expected.
pub(crate) fn parse_url(text: &str) -> Result<String, String> {
    if is_redis_url(text) {
        return Ok(text.to_owned());
    }
    let expected = "expected a URL that starts with redis://, rediss://, redis+unix://, or redis+ or rediss+ and then \
                    cluster:// or sentinel://";
    Err(expected.to_owned())
}

/// Connects to Redis. Must be called within a tokio runtime.
///
/// # Errors
/// [`UsageError`] for a malformed URL or prefix. Any other error if the server cannot be reached or refuses to serve.
pub async fn connect(url: &str, prefix: &str) -> anyhow::Result<RedisStore> {
    let builder = RedisStore::builder()
        .prefix(prefix)
        .connect_timeout(TIMEOUT)
        .response_timeout(TIMEOUT);
    // A lazy connection sends nothing, so an error here means a malformed URL or prefix.
    drop(
        builder
            .clone()
            .connect_lazy(url)
            .map_err(|error| UsageError(error.to_string()))?,
    );
    builder.connect(url).await.map_err(failed)
}

/// Returns the error, its sources and its key on one line.
pub fn failed(error: Error) -> anyhow::Error {
    // The library hides keys, but this program's keys come from the user.
    let key = error.key().map_or_else(String::new, |key| {
        format!("key \"{}\": ", text::key(key, 100))
    });
    let text = format!("{:#}", anyhow::Error::new(error));
    anyhow::Error::msg(key + &text.trim_end().replace('\n', "; "))
}

/// Returns a single-threaded runtime.
///
/// # Errors
/// If the system cannot create one.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
