//! Sweeping in the background.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::store::MemoryStore;

/// A background thread that [sweeps](MemoryStore::sweep) a store periodically, until the sweeper or the store is dropped.
///
/// Optional: a store sweeps each shard before the shard grows, so expired keys do not accumulate. A sweeper also frees
/// memory in a store that receives no fresh keys.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use limiter_memory::{MemoryStore, Sweeper};
///
/// let store = Arc::new(MemoryStore::new());
/// let sweeper = Sweeper::start(&store, Duration::from_secs(60))?;
/// // Keep `sweeper` for as long as the store is in use.
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Sweeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts a thread that sweeps `store` every `interval`. An interval below 1 ms is treated as 1 ms.
    ///
    /// The thread holds a weak reference, so it does not keep the store alive.
    ///
    /// # Errors
    /// The operating system's error if it cannot start a thread.
    pub fn start(store: &Arc<MemoryStore>, interval: Duration) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (store, interval) = (Arc::downgrade(store), interval.max(Duration::from_millis(1)));
        let run = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let Some(store) = Weak::upgrade(&store) else { return };
                store.sweep();
            }
        };
        let thread = thread::Builder::new().name("limiter-sweeper".to_owned()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    /// Stops the thread. Blocks until a running sweep has finished.
    fn drop(&mut self) {
        self.stop = None;
        _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use limiter_core::{Limiter, policy};

    use super::*;

    #[test]
    fn sweeps_until_dropped_and_keeps_no_store_alive() {
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !holds() {
                assert!(start.elapsed() < Duration::from_secs(20), "{what}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        let store = Arc::new(MemoryStore::new());
        let limiter = Limiter::new("test", policy!("1/1ms"), Arc::clone(&store));
        let sweeper = Sweeper::start(&store, Duration::from_millis(5)).unwrap();
        assert!(limiter.acquire("key").now().unwrap().allowed());
        until("the key is not swept", &|| store.is_empty());
        drop(sweeper);
        assert!(limiter.acquire("key").now().unwrap().allowed());
        thread::sleep(Duration::from_millis(50));
        assert_eq!(store.len(), 1, "a dropped sweeper sweeps no more");

        let sweeper = Sweeper::start(&store, Duration::from_millis(1)).unwrap();
        drop((limiter, store));
        until("the sweeper outlives the store", &|| sweeper.thread.as_ref().is_some_and(JoinHandle::is_finished));
    }
}
