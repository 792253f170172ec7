//! Replays through Redis. Rows are sent in batches, and rows of different keys are in flight concurrently.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use foldhash::fast::RandomState as Foldhash;
use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_core::store::LogKey;
use limiter_core::{Error, Limiter, Name, Policy, Timestamp, Window, WindowStore};
use limiter_redis::RedisStore;
use tokio::runtime::Runtime;

use super::NAME;
use super::rows::{RowResult, Skipped, deciding, each_row};
use crate::interrupt::on_interrupt;
use crate::message::message;
use crate::redis::{connect, failed, runtime};
use crate::trace::{Action, Row, Trace};

/// The maximum number of keys with an operation in flight.
const TASKS: usize = 64;
/// The maximum numbers of rows and of bytes of keys that are read ahead.
const MAX_ROWS: usize = 1 << 10;
const MAX_KEY_BYTES: usize = 1 << 20;
/// How long Redis keeps a log beyond its window after an append at a given time: a minute, less a second of clock
/// difference.
const EXPIRY_MARGIN: Duration = Duration::from_secs(59);

/// The keys that the run may have written, with the newest append to each.
type Written = HashMap<Box<[u8]>, Cell<Option<Append>>, Foldhash>;

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

/// A row that was read ahead.
#[derive(Debug)]
struct ReadRow {
    number: u64,
    at: Timestamp,
    key: Box<[u8]>,
    action: Action,
    cost: u64,
}

impl ReadRow {
    fn row(&self) -> Row<'_> {
        Row { at: self.at, key: &self.key, action: self.action, cost: self.cost }
    }
}

/// The logs of one replay: a random key prefix, and the keys written under it.
#[derive(Debug)]
pub(super) struct RedisRun {
    prefix: String,
    runtime: Runtime,
    limiter: Limiter<RedisStore>,
    written: Arc<Mutex<Written>>,
}

impl RedisRun {
    /// Connects to a URL. From now on, Ctrl-C and SIGTERM remove the keys of the run before the process ends.
    pub(super) fn connect(url: &str, policy: &Policy) -> anyhow::Result<Self> {
        let prefix = format!("limiter-replay:{:016x}", RandomState::new().hash_one(std::process::id()));
        let runtime = runtime()?;
        let limiter = Limiter::new(NAME, policy.clone(), runtime.block_on(connect(url, &prefix))?);
        let written = Arc::new(Mutex::new(Written::default()));
        let (url, shared) = (url.to_owned(), (prefix.clone(), Arc::clone(&written)));
        on_interrupt(move || {
            // A running batch holds this lock, so no operation is in flight once it is acquired.
            let (prefix, mut written) = (&shared.0, lock(&shared.1));
            let removed = crate::redis::runtime().map_err(anyhow::Error::from).and_then(|runtime| {
                runtime.block_on(async { remove(&connect(&url, prefix).await?, &mut written).await.map_err(failed) })
            });
            match removed {
                Ok(()) => message("interrupted"),
                Err(error) => message(format_args!("interrupted; {}: {error:#}", keys_remain(prefix))),
            }
            // Keep the lock until the process ends, so that nothing more is written.
            std::mem::forget(written);
        });
        Ok(Self { prefix, runtime, limiter, written })
    }

    /// Removes the run's keys. After an error, they expire.
    pub(super) fn remove(&mut self) -> anyhow::Result<()> {
        let removed = self.runtime.block_on(remove(self.limiter.store(), &mut lock(&self.written)));
        removed.map_err(|error| failed(error).context(keys_remain(&self.prefix)))
    }

    /// Runs every row as in memory. Rows of the same key run in order. `each` gets all rows in the order of the trace,
    /// after an error only those before the failed row.
    pub(super) fn replay<R: Read>(
        &mut self,
        trace: &mut Trace<R>,
        skip_invalid: bool,
        mut each: impl FnMut(&Row<'_>, &RowResult) -> anyhow::Result<()>,
    ) -> anyhow::Result<Skipped> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let read = each_row(trace, skip_invalid, |number, row| {
            bytes += row.key.len();
            batch.push(ReadRow { number, at: row.at, key: row.key.into(), action: row.action, cost: row.cost });
            if batch.len() < MAX_ROWS && bytes < MAX_KEY_BYTES {
                return Ok(());
            }
            bytes = 0;
            self.run(&std::mem::take(&mut batch), &mut each)
        });
        // Rows before a malformed one still run.
        self.run(&batch, &mut each)?;
        read
    }

    /// Runs a batch of rows, or its rows before the first that fails.
    fn run(
        &self,
        batch: &[ReadRow],
        each: &mut impl FnMut(&Row<'_>, &RowResult) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut written = lock(&self.written);
        let mut rows_of_keys: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
        for (index, row) in batch.iter().enumerate() {
            rows_of_keys.entry(&row.key).or_default().push(index);
            if !written.contains_key(&row.key) {
                written.insert(row.key.clone(), Cell::default());
            }
        }
        let results: Vec<OnceCell<RowResult>> = batch.iter().map(|_| OnceCell::new()).collect();
        let first_failure: RefCell<Option<(usize, anyhow::Error)>> = RefCell::default();
        let failed_before = |index| first_failure.borrow().as_ref().is_some_and(|(failed, _)| *failed < index);
        let work = stream::iter(rows_of_keys).for_each_concurrent(TASKS, async |(key, rows)| {
            for index in rows {
                if failed_before(index) {
                    return;
                }
                match self.row(&batch[index].row(), &written[key]).await {
                    Ok(result) => drop(results[index].set(result)),
                    Err(error) => {
                        if !failed_before(index) {
                            *first_failure.borrow_mut() = Some((index, error));
                        }
                        return;
                    }
                }
            }
        });
        self.runtime.block_on(work);
        let failure = first_failure.into_inner();
        let complete = failure.as_ref().map_or(batch.len(), |(index, _)| *index);
        for (row, result) in
            batch[..complete].iter().zip(results).filter_map(|(row, cell)| Some((row, cell.into_inner()?)))
        {
            each(&row.row(), &result)?;
        }
        match failure {
            Some((index, error)) => Err(error).with_context(|| deciding(batch[index].number)),
            None => Ok(()),
        }
    }

    async fn row(&self, row: &Row<'_>, newest: &Cell<Option<Append>>) -> anyhow::Result<RowResult> {
        let sent = Instant::now();
        let decision = match row.action {
            Action::Acquire => self.limiter.acquire(row.key).cost(row.cost).at(row.at).await,
            Action::Peek => self.limiter.peek(row.key).cost(row.cost).at(row.at).await,
            Action::Record => self.limiter.record(row.key).cost(row.cost).at(row.at).await,
            Action::Reset => {
                self.limiter.reset(row.key).await.map_err(failed)?;
                newest.set(None);
                return Ok(RowResult::Reset);
            }
        };
        let result = RowResult::from_result(decision).map_err(failed)?;
        if let RowResult::Decided(decision) = &result {
            let window = self.limiter.policy().longest_window();
            anyhow::ensure!(
                newest.get().is_none_or(|append| !append.is_lost(append.sent.elapsed(), decision.at(), window)),
                "the replay is slower than the trace: Redis keeps the log of a key for {} s only, and the key had rows \
                 further apart",
                window.as_duration().saturating_add(EXPIRY_MARGIN).as_secs()
            );
            if decision.appended() {
                newest.set(Some(Append { at: decision.at(), sent }));
            }
        }
        Ok(result)
    }
}

fn lock(written: &Mutex<Written>) -> MutexGuard<'_, Written> {
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn remove(store: &RedisStore, written: &mut Written) -> Result<(), Error> {
    let name = Name::new(NAME);
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
