//! A table in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use futures::FutureExt;
use futures::executor::ThreadPool;
use limiter_core::store::LogKey;
use limiter_core::{BoxFuture, Clock, Error, ErrorKind, Timestamp};
use limiter_log::{Change, Loaded, New, Table, async_trait, stored_key};
use limiter_testkit::MockClock;

/// The bytes and their expiry.
type Logs = BTreeMap<Vec<u8>, (Vec<u8>, Timestamp)>;

#[derive(Clone, Default)]
pub(crate) struct Workers(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl Workers {
    /// Polls each worker once.
    pub(crate) fn poll(&self) {
        let mut workers = std::mem::take(&mut *self.0.lock().unwrap());
        let context = &mut Context::from_waker(Waker::noop());
        workers.retain_mut(|worker| worker.poll_unpin(context).is_pending());
        self.0.lock().unwrap().extend(workers);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Drops all workers, as a runtime that ends.
    pub(crate) fn lose(&self) {
        let workers = std::mem::take(&mut *self.0.lock().unwrap());
        drop(workers);
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Workers")
    }
}

/// A table in memory. Clones share the logs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub(crate) logs: Arc<Mutex<Logs>>,
    /// The system's clock without one.
    pub(crate) clock: Option<MockClock>,
    pub(crate) takes_several: bool,
    /// One in this many comparisons is lost, at random. 0: none.
    pub(crate) lost: u64,
    /// The workers of a table with a clock, which [`run`](Self::run) polls. Others run in threads.
    pub(crate) workers: Workers,
    pub(crate) error: Arc<Mutex<Option<ErrorKind>>>,
    pub(crate) loads: Arc<AtomicUsize>,
    /// The most logs of one load.
    pub(crate) most_logs: Arc<AtomicUsize>,
    pub(crate) swaps: Arc<AtomicU64>,
    /// How many of the next requests never end.
    pub(crate) hanging: Arc<AtomicUsize>,
    /// Whether swaps wait.
    pub(crate) holds_swaps: Arc<AtomicBool>,
}

impl Map {
    fn now(&self) -> Timestamp {
        let system = || Timestamp::try_from(SystemTime::now()).unwrap();
        self.clock.as_ref().map_or_else(system, Clock::now)
    }

    pub(crate) fn sweep(&self) {
        let now = self.now();
        self.logs
            .lock()
            .unwrap()
            .retain(|_, (_, expires_at)| *expires_at > now);
    }

    /// Replaces the bytes of a log by some that are none.
    pub(crate) fn damage(&self, log: LogKey<'_>) {
        let mut logs = self.logs.lock().unwrap();
        let (_, expires_at) = logs.get(&stored_key(log)).cloned().unwrap_or_default();
        logs.insert(stored_key(log), (vec![9], expires_at));
    }

    pub(crate) fn counts(&self) -> (usize, u64) {
        (
            self.loads.load(Ordering::SeqCst),
            self.swaps.load(Ordering::SeqCst),
        )
    }

    async fn hang(&self) {
        let fewer = |hanging: usize| hanging.checked_sub(1);
        let hangs = self
            .hanging
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        if hangs.is_ok() {
            futures::future::pending::<()>().await;
        }
    }

    fn check(&self) -> Result<(), Error> {
        let error = *self.error.lock().unwrap();
        error.map_or(Ok(()), |kind| Err(Error::new(kind, "the map is broken")))
    }

    /// Runs calls, with the workers that serve them.
    pub(crate) fn run<F: Future>(&self, calls: F) -> F::Output {
        let mut calls = pin!(calls);
        let context = &mut Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(results) = calls.as_mut().poll(context) {
                return results;
            }
            self.workers.poll();
        }
    }

    /// Lets the other tasks run once.
    async fn pause(&self) {
        let mut is_second = false;
        futures::future::poll_fn(|context| {
            if std::mem::replace(&mut is_second, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

#[async_trait]
impl Table for Map {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        assert!(keys.len() == 1 || self.takes_several);
        assert!(keys.iter().all(|key| (1..=255).contains(&key.len())));
        self.pause().await;
        self.hang().await;
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.most_logs.fetch_max(keys.len(), Ordering::SeqCst);
        self.check()?;
        let loaded = {
            let logs = self.logs.lock().unwrap();
            let bytes = |key: &Vec<u8>| logs.get(key).map(|(bytes, _)| bytes.clone());
            Loaded {
                logs: keys.iter().map(bytes).collect(),
                now: self.now(),
            }
        };
        self.pause().await;
        Ok(loaded)
    }

    async fn swap(&self, changes: Vec<Change>, until: Timestamp) -> Result<bool, Error> {
        assert!(changes.len() == 1 || self.takes_several);
        assert!(changes.is_sorted_by_key(|change| &change.key));
        self.pause().await;
        while self.holds_swaps.load(Ordering::SeqCst) {
            self.pause().await;
        }
        self.hang().await;
        let number = self.swaps.fetch_add(1, Ordering::SeqCst);
        let is_lost = self.lost > 0
            && RandomState::new()
                .hash_one(number)
                .is_multiple_of(self.lost);
        self.check()?;
        let is_equal = {
            let mut logs = self.logs.lock().unwrap();
            let is_old = |change: &Change| {
                logs.get(&change.key).map(|(bytes, _)| bytes) == change.old.as_ref()
            };
            let is_in_time = self.now() < until;
            let is_equal = !is_lost && is_in_time && changes.iter().all(is_old);
            for change in changes.into_iter().filter(|_| is_equal) {
                match change.new {
                    New::Unchanged => None,
                    New::Saved { log, expires_at } => logs.insert(change.key, (log, expires_at)),
                };
            }
            is_equal
        };
        self.pause().await;
        Ok(is_equal)
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        static THREADS: LazyLock<ThreadPool> = LazyLock::new(|| ThreadPool::new().unwrap());
        match self.clock {
            Some(_) => self.workers.0.lock().unwrap().push(worker),
            None => THREADS.spawn_ok(worker),
        }
    }

    fn workers(&self) -> usize {
        2
    }

    fn takes_several(&self) -> bool {
        self.takes_several
    }
}
