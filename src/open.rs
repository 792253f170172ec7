//! A store by its text, as in a configuration file.

use crate::{Error, ErrorKind, SharedStore};

/// Returns the store that a configuration names: `memory`, or the URL of a Redis server, Cluster or Sentinel.
///
/// | text | store | feature |
/// |---|---|---|
/// | `memory` | [`MemoryStore`](crate::MemoryStore) | `memory` |
/// | `redis://…`, `redis+unix://…` | [`RedisStore`](crate::RedisStore) with its default settings | `redis` |
/// | `redis+cluster://…`, `redis+sentinel://…`, `rediss://…` | the same | `redis-cluster`, `redis-sentinel`, `redis-tls` |
///
/// Redis is connected to when needed, so the service starts during an outage. Put a `Guarded` store of the feature `wrappers` around
/// the store to choose what happens then.
///
/// # Errors
/// [`Configuration`](ErrorKind::Configuration) if the text is neither, if its feature is not enabled, or outside a tokio runtime
/// for Redis. The error shows no password.
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
    redis(text).map_err(|error| {
        let text = format!("expected memory or a Redis URL: {error}");
        Error::new(ErrorKind::Configuration, text)
    })
}

#[cfg(feature = "redis")]
fn redis(url: &str) -> Result<SharedStore, Error> {
    let store = crate::RedisStore::builder().connect_lazy(url)?;
    Ok(std::sync::Arc::new(store))
}

#[cfg(not(feature = "redis"))]
fn redis(_: &str) -> Result<SharedStore, &'static str> {
    Err("Redis needs the feature `redis` of the crate `exact-limiter`")
}
