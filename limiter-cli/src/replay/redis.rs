//! Replays through Redis. Rows are sent in batches, and rows of different keys are in flight concurrently.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use foldhash::fast::RandomState as Foldhash;
use futures::stream::{self, StreamExt, TryStreamExt};
use limiter_core::store::LogKey;
use limiter_core::{Error, Limiter, Name, Policy, Timestamp, WindowStore};
use limiter_memory::MemoryStore;
use limiter_redis::RedisStore;
use tokio::runtime::Runtime;

use super::NAME;
use super::rows::{RowResult, Skipped, deciding, each_row, run_row};
use crate::interrupt::on_interrupt;
use crate::message::message;
use crate::redis::{connect, failed, runtime};
use crate::text;
use crate::trace::{Action, Row, Trace};

/// The maximum number of keys with an operation in flight.
const TASKS: usize = 64;
/// The maximum numbers of rows and of bytes of keys that are read ahead.
const MAX_ROWS: usize = 1 << 10;
const MAX_KEY_BYTES: usize = 1 << 20;
/// The keys that the run may have written.
type Written = HashSet<Box<[u8]>, Foldhash>;

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
    /// Decides every row as well, to notice when Redis has lost a log.
    memory: Limiter<MemoryStore>,
    written: Arc<Mutex<Written>>,
}

impl RedisRun {
    /// Connects to a URL. From now on, Ctrl-C and SIGTERM remove the keys of the run before the process ends.
    pub(super) fn connect(url: &str, policy: &Policy) -> anyhow::Result<Self> {
        let prefix = format!("limiter-replay:{:016x}", RandomState::new().hash_one(std::process::id()));
        let runtime = runtime()?;
        let limiter = Limiter::new(NAME, policy.clone(), runtime.block_on(connect(url, &prefix))?);
        let memory = Limiter::new(NAME, policy.clone(), MemoryStore::new());
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
        Ok(Self { prefix, runtime, limiter, memory, written })
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
            if !written.contains(&row.key) {
                written.insert(row.key.clone());
            }
        }
        let results: Vec<OnceCell<anyhow::Result<RowResult>>> = batch.iter().map(|_| OnceCell::new()).collect();
        let first_failed = Cell::new(usize::MAX);
        let work = stream::iter(rows_of_keys.into_values()).for_each_concurrent(TASKS, async |rows| {
            for index in rows {
                if index > first_failed.get() {
                    return;
                }
                let result = self.row(&batch[index].row()).await;
                if result.is_err() {
                    first_failed.set(index.min(first_failed.get()));
                }
                drop(results[index].set(result));
            }
        });
        self.runtime.block_on(work);
        // An interrupt must not wait for the reader of the output.
        drop(written);
        for (row, result) in batch.iter().zip(results) {
            // Every row before the first failed one has a result.
            let Some(result) = result.into_inner() else { break };
            each(&row.row(), &result.with_context(|| deciding(row.number))?)?;
        }
        Ok(())
    }

    async fn row(&self, row: &Row<'_>) -> anyhow::Result<RowResult> {
        let decision = match row.action {
            Action::Acquire => self.limiter.acquire(row.key).cost(row.cost).at(row.at).await,
            Action::Peek => self.limiter.peek(row.key).cost(row.cost).at(row.at).await,
            Action::Record => self.limiter.record(row.key).cost(row.cost).at(row.at).await,
            Action::Reset => {
                self.limiter.reset(row.key).await.map_err(failed)?;
                return Ok(run_row(row, &self.memory)?);
            }
        };
        let result = RowResult::from_result(decision).map_err(failed)?;
        let expected = run_row(row, &self.memory)?;
        anyhow::ensure!(
            result.fields() == expected.fields(),
            "Redis has lost entries of the key {}: they expired, as they do a minute after the longest window, or were \
             evicted, or the server was restarted",
            text::key(row.key, 60)
        );
        Ok(result)
    }
}

fn lock(written: &Mutex<Written>) -> MutexGuard<'_, Written> {
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn remove(store: &RedisStore, written: &mut Written) -> Result<(), Error> {
    let name = Name::new(NAME);
    let keys = stream::iter(written.iter()).map(Ok::<_, Error>);
    keys.try_for_each_concurrent(TASKS, |key| async { store.reset(LogKey { name, key }).await.map(drop) }).await?;
    written.clear();
    Ok(())
}

fn keys_remain(prefix: &str) -> String {
    format!("keys that start with {prefix} remain until they expire")
}
