//! Connections to Redis.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};
use limiter_core::Error;
use limiter_redis::{RedisStore, RedisUrl};

use crate::text;
use crate::usage_error::UsageError;

/// The timeout for connecting, and for each of the two attempts of a command.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// Parses a URL in a command-line argument. Clap's own parsers print the value, and so the password.
#[derive(Clone, Debug)]
pub(crate) struct UrlParser;

impl TypedValueParser for UrlParser {
    type Value = RedisUrl;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<RedisUrl, clap::Error> {
        value.to_string_lossy().parse().map_err(|error| {
            let text = format!("--store: {error}\n");
            clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
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
    // A lazy connection does not connect, so an error here means a malformed URL or prefix.
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
