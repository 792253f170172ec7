//! What a store does while its server or the network fails.
//!
//! - [`Proxy`] stands between a store and any TCP server, and delays, holds, cuts or resets what passes.
//! - [`Scene`] is a server with faults that can be switched on and off.
#![cfg_attr(feature = "redis-server", doc = "  [`RedisScene`] and [`ClusterScene`] are those of Redis.")]
//! - [`observe`] runs several stores through one fault and reports what their callers see, and every broken promise.
//! - [`soak`] runs random faults for a given time.
//! - [`poll_times`] drops a future after a number of polls.
//!
//! An author of another backend implements [`Scene`], mostly with a [`Proxy`], and passes the store in a [`Subject`]. Tests that
//! assert times share a test program with no others, and hold [`alone`].

#[cfg(feature = "redis-server")]
mod cluster;
mod observe;
mod proxy;
#[cfg(feature = "redis-server")]
mod redis;
mod scene;
mod soak;
mod subject;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

#[cfg(feature = "redis-server")]
pub use cluster::{ClusterFault, ClusterScene};
pub use observe::{Observed, observe};
pub use proxy::{Network, Proxy};
#[cfg(feature = "redis-server")]
pub use redis::{RedisFault, RedisScene};
pub use scene::Scene;
pub use soak::{Soak, SoakReport, soak};
pub use subject::{Outcome, Subject};

/// Keeps other tests of the same program from running: see [`alone`].
#[derive(Debug)]
#[must_use = "other tests run as soon as it is dropped"]
pub struct Alone {
    _lock: MutexGuard<'static, ()>,
}

/// Waits until no other test of this program holds an [`Alone`]. Every test of a program that asserts times must call it.
pub fn alone() -> Alone {
    static LOCK: Mutex<()> = Mutex::new(());
    Alone { _lock: LOCK.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// Polls a future until it is ready, but at most this many times, and drops it. Returns `None` if it was not ready.
pub async fn poll_times<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
