//! Connections to Redis and Postgres.

use std::ffi::OsStr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};
use limiter_core::store::{LiveKey, LogInfo, LogKey};
use limiter_core::{Error, Name, SharedStore};
use limiter_postgres::{PostgresStore, PostgresUrl};
use limiter_redis::{DEFAULT_PREFIX, RedisStore, RedisUrl};

use crate::text;
use crate::usage_error::UsageError;

/// The timeout for connecting, and for each of the two attempts or requests of a command.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// The number of database keys that Redis examines per page.
const PAGE_KEYS: usize = 1_000;

/// The URL of a store. Its `Debug` output shows no password.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// A Redis server or cluster.
    Redis(RedisUrl),
    /// A Postgres database.
    Postgres(PostgresUrl),
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        if PostgresUrl::matches(url) {
            url.parse().map(Self::Postgres)
        } else {
            url.parse().map(Self::Redis)
        }
    }
}

/// Parses a URL in a command-line argument. Clap's own parsers print the value, and so the password.
#[derive(Clone, Debug)]
pub(crate) struct UrlParser;

impl TypedValueParser for UrlParser {
    type Value = StoreUrl;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<StoreUrl, clap::Error> {
        value.to_string_lossy().parse().map_err(|error| {
            let text = format!("--store: expected the URL of Postgres or Redis: {error}\n");
            clap::Error::raw(ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
}

/// The logs of a service.
#[derive(Clone, Debug)]
pub enum Logs {
    /// In Redis.
    Redis(Arc<RedisStore>),
    /// In Postgres.
    Postgres(Arc<PostgresStore>),
}

impl Logs {
    /// Connects to Redis. Postgres is connected to when needed. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`UsageError`] for a malformed URL or prefix. Any other error if the server cannot be reached or refuses to serve.
    pub async fn open(url: &StoreUrl, prefix: &str) -> anyhow::Result<Self> {
        let usage = |error: Error| UsageError(error.to_string());
        let url = match url {
            StoreUrl::Redis(url) => url.with_credentials(),
            StoreUrl::Postgres(_) if prefix != DEFAULT_PREFIX => {
                let text = "--prefix: it is for Redis; for Postgres, choose a schema with ?options=-csearch_path%3DNAME in the URL";
                return Err(UsageError(text.to_owned()).into());
            }
            StoreUrl::Postgres(url) => {
                let table = url.open().map_err(usage)?.timeout(TIMEOUT);
                return Ok(Self::Postgres(Arc::new(PostgresStore::new(table))));
            }
        };
        let builder = RedisStore::builder()
            .prefix(prefix)
            .connect_timeout(TIMEOUT)
            .response_timeout(TIMEOUT);
        // A lazy connection does not connect, so an error here means a malformed URL or prefix.
        drop(builder.clone().connect_lazy(url).map_err(usage)?);
        let store = builder.connect(url).await.map_err(failed)?;
        Ok(Self::Redis(Arc::new(store)))
    }

    /// Returns the store for a limiter.
    #[must_use]
    pub fn shared(&self) -> SharedStore {
        match self {
            Self::Redis(store) => store.clone(),
            Self::Postgres(store) => store.clone(),
        }
    }

    /// Describes a log. `None` if there is none.
    ///
    /// # Errors
    /// If the store fails, or holds something else.
    pub async fn inspect(&self, log: LogKey<'_>) -> Result<Option<LogInfo>, Error> {
        match self {
            Self::Redis(store) => store.inspect(log).await,
            Self::Postgres(store) => store.inspect(log).await,
        }
    }

    /// Scans the logs, and calls `work` with each page: of all limiters, or of the one called `name`.
    ///
    /// # Errors
    /// If the store fails, and the errors of `work`.
    pub async fn scan(
        &self,
        name: Option<Name>,
        mut work: impl AsyncFnMut(Vec<LiveKey>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Redis(store) => {
                let mut cursor = None;
                loop {
                    let page = store.scan(name, cursor, PAGE_KEYS).await;
                    let page = page.map_err(failed)?;
                    work(page.keys).await?;
                    cursor = page.next;
                    if cursor.is_none() {
                        return Ok(());
                    }
                }
            }
            Self::Postgres(store) => {
                let mut after = Vec::new();
                loop {
                    let page = store.table().scan(&after).await;
                    let (mut keys, next) = page.map_err(failed)?;
                    keys.retain(|live| name.is_none_or(|name| name.as_str() == live.name));
                    work(keys).await?;
                    match next {
                        Some(next) => after = next,
                        None => return Ok(()),
                    }
                }
            }
        }
    }
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
