//! Replays through Redis: rows are sent in batches, those of different keys at the same time.

mod batch;
mod interrupt;
mod replay;
mod run;

use std::fmt;
use std::time::Duration;

use limiter_core::{Error, ErrorKind};
use limiter_redis::RedisStore;

pub use replay::replay;
pub use run::RedisRun;

/// How long connecting may take, and each of two attempts of a command.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A URL or a prefix that can never work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// Connects, from within a tokio runtime.
///
/// # Errors
/// [`Invalid`] for a malformed URL or prefix; otherwise what keeps the server from answering.
pub async fn connect(url: &str, prefix: &str) -> anyhow::Result<RedisStore> {
    let builder = RedisStore::builder().prefix(prefix).connect_timeout(PATIENCE).response_timeout(PATIENCE);
    // Sends nothing: what it refuses is malformed.
    if let Err(error) = builder.clone().connect_lazily(url) {
        return Err(match error.kind() {
            ErrorKind::Configuration => Invalid(error.to_string()).into(),
            _ => failed(error),
        });
    }
    builder.connect(url).await.map_err(failed)
}

/// The error on one line, without its sources, which its text tells already.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn failed(error: Error) -> anyhow::Error {
    anyhow::Error::msg(error.to_string().trim_end().replace('\n', "; "))
}

/// A runtime for one thread.
///
/// # Errors
/// If the system gives none.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
