//! A custom store: one durable file, on redb. `cargo run --example own_store -- limits.redb`
//!
//! Any key-value store with transactions works the same way: load the log, apply the operation to the `Log`, save it.

use std::time::SystemTime;

use async_trait::async_trait;
use exact_limiter::store::{Facts, Log, LogKey, Op, Settlement, SettlementFacts, WindowStore};
use exact_limiter::time::Timestamp;
use exact_limiter::{Error, ErrorKind, Limiter, policy};
use redb::{Database, ReadableTable, Table, TableDefinition};

const LOGS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("logs");

#[derive(Debug)]
pub(crate) struct RedbStore(Database);

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::new(ErrorKind::Unavailable, "the redb database returned an error").with_source(error.into())
}

fn damaged(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Corrupt, "the saved log is damaged").with_source(error)
}

impl RedbStore {
    pub(crate) fn open(path: &str) -> Result<Self, Error> {
        Ok(Self(Database::create(path).map_err(failed)?))
    }

    /// Runs `work` in one transaction, and commits it if `work` returns `true`.
    ///
    /// A commit waits for the disk, so `block_in_place` moves other tasks off this thread.
    fn write<T>(&self, work: impl FnOnce(&mut Table<&[u8], &[u8]>) -> Result<(T, bool), Error>) -> Result<T, Error> {
        tokio::task::block_in_place(|| {
            let transaction = self.0.begin_write().map_err(failed)?;
            let (result, changed) = work(&mut transaction.open_table(LOGS).map_err(failed)?)?;
            if changed {
                transaction.commit().map_err(failed)?;
            }
            Ok(result)
        })
    }

    /// Loads a log, applies `change` and saves the log, in one transaction.
    fn change<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Log, Timestamp) -> T) -> Result<T, Error> {
        let key = key.to_bytes();
        self.write(|logs| {
            let old = logs.get(&*key).map_err(failed)?.map(|saved| saved.value().to_vec());
            let mut log = old
                .as_deref()
                .map_or_else(|| Ok(Log::new()), |saved| serde_json::from_slice(saved).map_err(damaged))?;
            // The contract (T2) requires reading the clock inside the transaction.
            let result = change(&mut log, Timestamp::try_from(SystemTime::now())?);
            let new = if log.is_empty() { None } else { Some(serde_json::to_vec(&log).map_err(damaged)?) };
            match &new {
                Some(new) => drop(logs.insert(&*key, &**new).map_err(failed)?),
                None => drop(logs.remove(&*key).map_err(failed)?),
            }
            Ok((result, new != old))
        })
    }

    /// Deletes expired logs. Call it periodically.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        let now = Timestamp::try_from(SystemTime::now())?;
        let is_kept = |_: &[u8], saved: &[u8]| {
            serde_json::from_slice(saved).map_or(true, |log: Log| log.expires_at() > Some(now))
        };
        self.write(|logs| logs.retain(is_kept).map(|()| ((), true)).map_err(failed))
    }
}

#[async_trait]
impl WindowStore for RedbStore {
    async fn apply(&self, op: Op<'_>) -> Result<Facts, Error> {
        self.change(op.log, |log, now| log.apply(&op, now))
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.change(settlement.log, |log, now| log.settle(&settlement, now))
    }

    async fn reset(&self, key: LogKey<'_>) -> Result<bool, Error> {
        self.write(|logs| {
            let removed = logs.remove(&*key.to_bytes()).map_err(failed)?.is_some();
            Ok((removed, removed))
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let store = RedbStore::open(&std::env::args().nth(1).unwrap_or_else(|| "limits.redb".to_owned()))?;
    store.sweep()?;
    let search = Limiter::new("search", policy!("3/10m"), store);
    for _ in 0..4 {
        let decision = search.acquire("customer 7").await?;
        println!("allowed: {}, used: {} of {}", decision.allowed(), decision.used(), decision.limit());
    }
    Ok(())
}
