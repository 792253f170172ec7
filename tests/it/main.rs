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
