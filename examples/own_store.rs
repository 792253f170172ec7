//! A custom store: one durable file, on redb. `cargo run --example own_store -- limits.redb`
//!
//! Any key-value store with transactions works the same way: load the log, apply the operation to the `Log`, save it.

use std::time::SystemTime;

use async_trait::async_trait;
use exact_limiter::store::{
    Facts, JointFacts, JointOp, Log, LogKey, Op, Settlement, SettlementFacts, WindowStore,
};
use exact_limiter::time::Timestamp;
use exact_limiter::{Error, ErrorKind, Limiter, policy};
use redb::{Database, ReadableTable, Table, TableDefinition};

const LOGS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("logs");

#[derive(Debug)]
pub(crate) struct RedbStore(Database);

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the redb database returned an error: {}", error.into()),
    )
}

fn damaged(error: &serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the saved log is damaged: {error}"),
    )
}

impl RedbStore {
    pub(crate) fn open(path: &str) -> Result<Self, Error> {
        Ok(Self(Database::create(path).map_err(failed)?))
    }

    /// Runs `work` in one transaction, and commits it if `work` returns `true`.
    ///
    /// A commit waits for the disk, so `block_in_place` moves other tasks off this thread.
    fn write<T>(
        &self,
        work: impl FnOnce(&mut Table<&[u8], &[u8]>) -> Result<(T, bool), Error>,
    ) -> Result<T, Error> {
        tokio::task::block_in_place(|| {
            let transaction = self.0.begin_write().map_err(failed)?;
            let (result, changed) = work(&mut transaction.open_table(LOGS).map_err(failed)?)?;
            if changed {
                transaction.commit().map_err(failed)?;
            }
            Ok(result)
        })
    }

    /// Loads logs, applies `change` and saves the logs, in one transaction.
    fn change<'k, T>(
        &self,
        keys: impl Iterator<Item = LogKey<'k>>,
        change: impl FnOnce(&mut [Log], Timestamp) -> T,
    ) -> Result<T, Error> {
        let keys: Vec<Vec<u8>> = keys.map(|key| key.to_bytes()).collect();
        self.write(|table| {
            let load = |key: &Vec<u8>| {
                Ok(table
                    .get(&**key)
                    .map_err(failed)?
                    .map(|saved| saved.value().to_vec()))
            };
            let old = keys.iter().map(load).collect::<Result<Vec<_>, Error>>()?;
            let log = |saved: &[u8]| serde_json::from_slice(saved).map_err(|error| damaged(&error));
            let log = |old: &Option<Vec<u8>>| old.as_deref().map_or_else(|| Ok(Log::new()), log);
            let mut logs = old.iter().map(log).collect::<Result<Vec<_>, Error>>()?;
            // The contract (T2) requires reading the clock inside the transaction.
            let result = change(&mut logs, Timestamp::try_from(SystemTime::now())?);
            let save = |log: &Log| {
                (!log.is_empty())
                    .then(|| serde_json::to_vec(log).map_err(|error| damaged(&error)))
                    .transpose()
            };
            let new = logs.iter().map(save).collect::<Result<Vec<_>, Error>>()?;
            for (key, new) in keys.iter().zip(&new) {
                match new {
                    Some(new) => drop(table.insert(&**key, &**new).map_err(failed)?),
                    None => drop(table.remove(&**key).map_err(failed)?),
                }
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
        self.change([op.log].into_iter(), |logs, now| logs[0].apply(&op, now))
    }

    async fn apply_all(&self, ops: &[JointOp<'_>]) -> Result<Option<JointFacts>, Error> {
        let facts = self.change(ops.iter().map(|joint| joint.op.log), |logs, now| {
            Log::apply_all(logs, ops, now)
        })?;
        Ok(Some(facts.into_iter().map(Ok).collect()))
    }

    fn identity(&self) -> Option<usize> {
        Some(std::ptr::from_ref(self).addr())
    }

    async fn settle(&self, settlement: Settlement<'_>) -> Result<SettlementFacts, Error> {
        self.change([settlement.log].into_iter(), |logs, now| {
            logs[0].settle(&settlement, now)
        })
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
    let store = RedbStore::open(
        &std::env::args()
            .nth(1)
            .unwrap_or_else(|| "limits.redb".to_owned()),
    )?;
    store.sweep()?;
    let search = Limiter::new("search", policy!("3/10m"), store);
    for _ in 0..4 {
        let decision = search.acquire("customer 7").await?;
        println!(
            "allowed: {}, used: {} of {}",
            decision.is_allowed(),
            decision.used(),
            decision.limit()
        );
    }
    Ok(())
}
