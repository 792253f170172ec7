//! The tests of the facade, in one program.

#[cfg(all(feature = "memory", feature = "redis-cluster"))]
mod levels;
#[cfg(all(feature = "memory", feature = "redis-cluster"))]
mod open_store;
#[cfg(feature = "log")]
mod own_store;
#[cfg(all(feature = "memory", feature = "redis", feature = "wrappers"))]
mod production;
#[cfg(feature = "memory")]
mod shares;
#[cfg(all(feature = "memory", feature = "redis-cluster"))]
mod slots;
mod trust;

/// Returns a store that a busy machine does not make slow.
#[cfg(all(feature = "memory", feature = "redis-cluster"))]
fn patient(url: &str) -> std::sync::Arc<exact_limiter::RedisStore> {
    let timeout = std::time::Duration::from_secs(60);
    let store = exact_limiter::RedisStore::builder();
    let store = store.connect_timeout(timeout).response_timeout(timeout);
    std::sync::Arc::new(store.connect_lazy(url).unwrap())
}
