//! A custom store: one durable file, on redb. `cargo run --example own_store --features log -- limits.redb`

use std::sync::Arc;
use std::time::SystemTime;

use exact_limiter::log::{BoxFuture, Change, Loaded, LogStore, New, Table, Timestamp, async_trait};
use exact_limiter::{Error, ErrorKind, Limiter, policy};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

/// The time of expiry in microseconds, and the log.
const LOGS: TableDefinition<'_, &[u8], (u64, &[u8])> = TableDefinition::new("logs");

#[derive(Clone, Debug)]
pub(crate) struct RedbTable(Arc<Database>);

/// Loads the logs of keys.
fn read(database: &Database, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, redb::Error> {
    let logs = database.begin_read()?.open_table(LOGS)?;
    let log = |key: &Vec<u8>| Ok(logs.get(&**key)?.map(|log| log.value().1.to_vec()));
    keys.iter().map(log).collect()
}

fn sweep(database: &Database, now: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let is_live = |_: &[u8], log: (u64, &[u8])| log.0 > now;
    transaction.open_table(LOGS)?.retain(is_live)?;
    Ok(transaction.commit()?)
}

/// Saves changes, unless a log is not the old one, or it is too late. Waits for the disk.
fn write(database: &Database, changes: &[Change], until: Timestamp) -> Result<bool, redb::Error> {
    let transaction = database.begin_write()?;
    // No other transaction, such as a sweep, can come in between now.
    if Timestamp::try_from(SystemTime::now()).is_ok_and(|now| now >= until) {
        return Ok(false);
    }
    let mut logs = transaction.open_table(LOGS)?;
    for change in changes {
        let key = &*change.key;
        if logs.get(key)?.map(|log| log.value().1.to_vec()) != change.old {
            return Ok(false);
        }
        match &change.new {
            New::Unchanged => {}
            New::Saved { log, expires_at } => {
                logs.insert(key, (expires_at.as_micros(), &**log))?;
            }
        }
    }
    drop(logs);
    transaction.commit()?;
    Ok(true)
}

fn failed(error: impl Into<Box<dyn std::error::Error>>) -> Error {
    Error::new(ErrorKind::Unavailable, error.into().to_string())
}

impl RedbTable {
    pub(crate) fn open(path: &str) -> Result<Self, Error> {
        let database = Database::create(path).map_err(failed)?;
        let table = Self(Arc::new(database));
        table.sweep()?;
        Ok(table)
    }

    /// Deletes expired logs. Call it periodically.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        let now = Timestamp::try_from(SystemTime::now())?;
        sweep(&self.0, now.as_micros()).map_err(failed)
    }
}

#[async_trait]
impl Table for RedbTable {
    async fn load(&self, keys: &[Vec<u8>]) -> Result<Loaded, Error> {
        let logs = read(&self.0, keys).map_err(failed)?;
        let now = SystemTime::now().try_into()?;
        Ok(Loaded { logs, now })
    }

    async fn swap(&self, changes: Vec<Change>, until: Timestamp) -> Result<bool, Error> {
        let database = Arc::clone(&self.0);
        let write = tokio::task::spawn_blocking(move || write(&database, &changes, until));
        write.await.map_err(failed)?.map_err(failed)
    }

    fn spawn(&self, worker: BoxFuture<'static, ()>) {
        tokio::spawn(worker);
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1);
    let table = RedbTable::open(path.as_deref().unwrap_or("limits.redb"))?;
    let search = Limiter::new("search", policy!("3/10m"), LogStore::new(table));
    for _ in 0..4 {
        let decision = search.acquire("customer 7").await?;
        let used = decision.used();
        let limit = decision.limit();
        println!(
            "allowed: {}, used: {used} of {limit}",
            decision.is_allowed()
        );
    }
    Ok(())
}
