//! The logs of one replay in Redis.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState as Foldhash;
use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_core::store::LogKey;
use limiter_core::{Error, Limiter, Name, Policy, Timestamp, Window, WindowStore};
use limiter_redis::RedisStore;
use tokio::runtime::Runtime;

use super::batch::Batch;
use crate::interrupt::on_interrupt;
use crate::redis::{connect, failed, runtime};
use crate::replay::row_result::{LIMITER_NAME, RowResult};
use crate::trace::{Action, Row};

/// The maximum number of keys with an operation in flight.
const TASKS: usize = 64;
/// How long Redis keeps a log beyond its window after an append at a given time: a minute, less a second of clock
/// difference.
const EXPIRY_MARGIN: Duration = Duration::from_secs(59);

/// The keys that the run may have written, with the newest append to each.
type Written = HashMap<Box<[u8]>, Option<Append>, Foldhash>;

/// The newest append to a log.
#[derive(Clone, Copy, Debug)]
struct Append {
    at: Timestamp,
    /// A time before the append was sent.
    sent: Instant,
}

impl Append {
    /// Returns whether Redis may have expired the log although it still counts at `now`, a time of the trace.
    fn is_lost(&self, elapsed: Duration, now: Timestamp, window: Window) -> bool {
        elapsed >= window.as_duration().saturating_add(EXPIRY_MARGIN) && window.counts(self.at, now)
    }
}

/// The logs of one replay: a random key prefix, and the keys written under it.
#[derive(Debug)]
pub struct RedisRun {
    prefix: String,
    runtime: Runtime,
    limiter: Limiter<RedisStore>,
    written: Arc<Mutex<Written>>,
}

impl RedisRun {
    /// Connects to a URL. From now on, Ctrl-C and SIGTERM remove the keys of the run before the process ends.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn connect(url: &str, policy: &Policy) -> anyhow::Result<Self> {
        let prefix = format!("limiter-replay:{:016x}", RandomState::new().hash_one(std::process::id()));
        let runtime = runtime()?;
        let limiter = Limiter::new(LIMITER_NAME, policy.clone(), runtime.block_on(connect(url, &prefix))?);
        let written = Arc::new(Mutex::new(Written::default()));
        let (url, shared) = (url.to_owned(), (prefix.clone(), Arc::clone(&written)));
        on_interrupt(move || {
            // A running batch holds this lock, so no operation is in flight once it is acquired.
            let (prefix, mut written) = (&shared.0, lock(&shared.1));
            let removed = crate::redis::runtime().map_err(anyhow::Error::from).and_then(|runtime| {
                runtime.block_on(async { remove(&connect(&url, prefix).await?, &mut written).await.map_err(failed) })
            });
            match removed {
                Ok(()) => eprintln!("limiter: interrupted"),
                Err(error) => eprintln!("limiter: interrupted; {}: {error:#}", keys_remain(prefix)),
            }
            // Keep the lock until the process ends, so that nothing more is written.
            std::mem::forget(written);
        });
        Ok(Self { prefix, runtime, limiter, written })
    }

    /// Returns the prefix of the run's keys.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Removes the run's keys.
    ///
    /// # Errors
    /// Any error of the store. The keys then expire.
    pub fn remove(&mut self) -> anyhow::Result<()> {
        let removed = self.runtime.block_on(remove(self.limiter.store(), &mut lock(&self.written)));
        removed.map_err(|error| failed(error).context(keys_remain(&self.prefix)))
    }

    /// Runs all rows, or the rows before the first that fails.
    pub(crate) fn decide(&mut self, batch: &Batch) -> (Vec<RowResult>, Option<anyhow::Error>) {
        let mut written = lock(&self.written);
        let stop = Cell::new(usize::MAX);
        let work = Work { limiter: &self.limiter, batch, stop: &stop };
        let chains: Vec<_> = batch
            .chains()
            .into_iter()
            .map(|(key, rows)| {
                if rows.iter().any(|row| matches!(batch.row(*row).action, Action::Acquire | Action::Record))
                    && !written.contains_key(key)
                {
                    written.insert(key.into(), None);
                }
                (key, written.get(key).copied().flatten(), rows)
            })
            .collect();
        let mut results: Vec<Option<RowResult>> = (0..batch.len()).map(|_| None).collect();
        let mut failure = None;
        self.runtime.block_on(async {
            let mut done = stream::iter(chains)
                .map(|(key, newest, rows)| async move { (key, work.chain(newest, &rows).await) })
                .buffer_unordered(TASKS);
            while let Some((key, chain)) = done.next().await {
                if let Some(written) = written.get_mut(key) {
                    *written = chain.newest;
                }
                for (row, result) in chain.results {
                    results[row] = Some(result);
                }
                if let Some((row, error)) = chain.failure
                    && row == stop.get()
                {
                    failure = Some(error);
                }
            }
        });
        results.truncate(stop.get());
        (results.into_iter().flatten().collect(), failure)
    }
}

/// The results of the rows of one key.
struct Chain {
    newest: Option<Append>,
    results: Vec<(usize, RowResult)>,
    failure: Option<(usize, anyhow::Error)>,
}

#[derive(Clone, Copy)]
struct Work<'a> {
    limiter: &'a Limiter<RedisStore>,
    batch: &'a Batch,
    /// The first row that failed. Rows after it are skipped.
    stop: &'a Cell<usize>,
}

impl Work<'_> {
    async fn chain(&self, newest: Option<Append>, rows: &[usize]) -> Chain {
        let mut chain = Chain { newest, results: Vec::with_capacity(rows.len()), failure: None };
        for index in rows.iter().copied() {
            if index > self.stop.get() {
                break;
            }
            match self.row(&self.batch.row(index), &mut chain.newest).await {
                Ok(result) => chain.results.push((index, result)),
                Err(error) => {
                    self.stop.set(self.stop.get().min(index));
                    chain.failure = Some((index, error));
                    break;
                }
            }
        }
        chain
    }

    async fn row(&self, row: &Row<'_>, newest: &mut Option<Append>) -> anyhow::Result<RowResult> {
        let sent = Instant::now();
        let decision = match row.action {
            Action::Acquire => self.limiter.acquire(row.key).cost(row.cost).at(row.at).await,
            Action::Peek => self.limiter.peek(row.key).cost(row.cost).at(row.at).await,
            Action::Record => self.limiter.record(row.key).cost(row.cost).at(row.at).await,
            Action::Reset => {
                self.limiter.reset(row.key).await.map_err(failed)?;
                *newest = None;
                return Ok(RowResult::Reset);
            }
        };
        let result = RowResult::from_result(decision).map_err(failed)?;
        if let (RowResult::Decided(decision), Some(append)) = (&result, *newest) {
            let window = self.limiter.policy().longest_window();
            anyhow::ensure!(
                !append.is_lost(append.sent.elapsed(), decision.at(), window),
                "the replay is slower than the trace: Redis keeps the log of a key for {} s only, and the key had rows \
                 further apart",
                window.as_duration().saturating_add(EXPIRY_MARGIN).as_secs()
            );
        }
        if let RowResult::Decided(decision) = &result
            && decision.receipt().is_some()
        {
            *newest = Some(Append { at: decision.at(), sent });
        }
        Ok(result)
    }
}

fn lock(written: &Mutex<Written>) -> MutexGuard<'_, Written> {
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn remove(store: &RedisStore, written: &mut Written) -> Result<(), Error> {
    let name = Name::new(LIMITER_NAME);
    let keys = stream::iter(written.keys()).map(Ok::<_, Error>);
    keys.try_for_each_concurrent(TASKS, |key| async { store.reset(LogKey { name, key }).await.map(drop) }).await?;
    written.clear();
    Ok(())
}

fn keys_remain(prefix: &str) -> String {
    format!("keys that start with {prefix} remain until they expire")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_log_is_lost_only_while_it_counts() {
        let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000).unwrap();
        let window = Window::try_from(Duration::from_secs(10)).unwrap();
        let append = Append { at: at(100), sent: Instant::now() };
        let lost = |elapsed, now| append.is_lost(Duration::from_secs(elapsed), at(now), window);
        assert!(!lost(68, 109) && !lost(69, 110) && !lost(1_000, 110));
        assert!(lost(69, 109) && lost(1_000, 100));
        // A late row runs at the time of the newest entry.
        assert!(lost(69, 50));
    }
}
