//! A store of your own in 80 lines: durable, in one file, on redb. `cargo run --example own_store -- limits.redb`
//!
//! Any key-value store with transactions will do: load the log, let `Log` change it, save it.

use std::time::SystemTime;

use limiter::store::{Facts, Log, LogKey, Op, Settlement, SettlementFacts, WindowStore};
use limiter::time::Timestamp;
use limiter::{Error, ErrorKind, Limiter, policy};
use redb::{Database, ReadableTable, Table, TableDefinition};

const LOGS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("logs");

#[derive(Debug)]
pub(crate) struct RedbStore(Database);

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::new(ErrorKind::Unavailable, "the database failed").with_source(error.into())
}

impl RedbStore {
    pub(crate) fn open(path: &str) -> Result<Self, Error> {
        Ok(Self(Database::create(path).map_err(failed)?))
    }

    /// Runs one transaction, which is committed if `work` says that it wrote. A commit waits for the disk, so the calling
    /// thread is taken out of its runtime.
    fn write<T>(&self, work: impl FnOnce(&mut Table<&[u8], &[u8]>) -> Result<(T, bool), Error>) -> Result<T, Error> {
        tokio::task::block_in_place(|| {
            let transaction = self.0.begin_write().map_err(failed)?;
            let (answer, wrote) = work(&mut transaction.open_table(LOGS).map_err(failed)?)?;
            if wrote {
                transaction.commit().map_err(failed)?;
            }
            Ok(answer)
        })
    }

    fn change<T>(&self, key: LogKey<'_>, change: impl FnOnce(&mut Log, Timestamp) -> T) -> Result<T, Error> {
        let key = key.to_bytes();
        self.write(|logs| {
            let old = logs.get(&*key).map_err(failed)?.map(|saved| saved.value().to_vec());
            let mut log = old.as_deref().map_or_else(|| Ok(Log::new()), Log::from_bytes)?;
            // Read only now, when nobody else can change the log.
            let answer = change(&mut log, Timestamp::try_from(SystemTime::now())?);
            let new = (!log.is_empty()).then(|| log.to_bytes());
            match &new {
                Some(new) => drop(logs.insert(&*key, &**new).map_err(failed)?),
                None => drop(logs.remove(&*key).map_err(failed)?),
            }
            Ok((answer, new != old))
        })
    }

    /// Forgets the logs that have expired. Call it now and then.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        let now = Timestamp::try_from(SystemTime::now())?;
        let is_kept = |_: &[u8], saved: &[u8]| Log::from_bytes(saved).map_or(true, |log| log.expires_at() > Some(now));
        self.write(|logs| logs.retain(is_kept).map(|()| ((), true)).map_err(failed))
    }
}

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
