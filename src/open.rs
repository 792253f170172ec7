//! A store by its text, as in a configuration file.

use crate::{Error, ErrorKind, SharedStore};

/// Returns the store that a configuration names: `memory`, or the URL of a Postgres database or of a Redis server, Cluster or Sentinel.
///
/// | text | store | feature |
/// |---|---|---|
/// | `memory` | [`MemoryStore`](crate::MemoryStore) | `memory` |
/// | `redis://…`, `redis+unix://…` | [`RedisStore`](crate::RedisStore) with its default settings | `redis` |
/// | `redis+cluster://…`, `redis+sentinel://…`, `rediss://…` | the same | `redis-cluster`, `redis-sentinel`, `redis-tls` |
/// | `postgres://…`, `postgresql://…` | [`PostgresStore`](crate::PostgresStore), whose table is created if it is missing, and swept once a minute | `postgres` |
/// | `postgres://…?sslmode=require` | the same | `postgres-tls` |
///
/// Servers are connected to when needed, so the service starts during an outage. Put a `Guarded` store of the feature `wrappers` around
/// the store to choose what happens then.
///
/// # Errors
/// [`Configuration`](ErrorKind::Configuration) if the text is neither, if its feature is not enabled, or outside a tokio runtime
/// unless the store is in memory. The error shows no password.
///
/// # Examples
/// ```
/// # #[cfg(feature = "memory")] {
/// use exact_limiter::{Limiter, open_store, policy};
///
/// let text = std::env::var("STORE").unwrap_or_else(|_| "memory".to_owned());
/// let search = Limiter::new("search", policy!("5/10s"), open_store(&text)?);
/// # drop(search);
/// # }
/// # Ok::<(), exact_limiter::Error>(())
/// ```
pub fn open_store(text: &str) -> Result<SharedStore, Error> {
    #[cfg(feature = "memory")]
    if text == "memory" {
        return Ok(std::sync::Arc::new(crate::MemoryStore::new()));
    }
    let scheme = text.split("://").next().unwrap_or_default();
    let opened = if scheme.to_ascii_lowercase().contains("postgres") {
        postgres(text)
    } else {
        redis(text)
    };
    opened.map_err(|error| {
        let text = format!("expected memory or the URL of Postgres or Redis: {error}");
        Error::new(ErrorKind::Configuration, text)
    })
}

#[cfg(feature = "postgres")]
fn postgres(url: &str) -> Result<SharedStore, Error> {
    let table = url
        .parse::<crate::postgres::PostgresUrl>()?
        .open_maintained()?;
    Ok(std::sync::Arc::new(crate::PostgresStore::new(table)))
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str) -> Result<SharedStore, Error> {
    Err(needs(
        "Postgres needs the feature `postgres` of the crate `exact-limiter`",
    ))
}

#[cfg(feature = "redis")]
fn redis(url: &str) -> Result<SharedStore, Error> {
    let store = crate::RedisStore::builder().connect_lazy(url)?;
    Ok(std::sync::Arc::new(store))
}

#[cfg(not(feature = "redis"))]
fn redis(text: &str) -> Result<SharedStore, Error> {
    Err(needs(if text.starts_with("redis") {
        "Redis needs the feature `redis` of the crate `exact-limiter`"
    } else {
        "found neither"
    }))
}

#[cfg(not(all(feature = "postgres", feature = "redis")))]
fn needs(text: &str) -> Error {
    Error::new(ErrorKind::Configuration, text)
}
