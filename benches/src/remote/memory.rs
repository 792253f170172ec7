//! Measures the size of a key in the server's memory.

use anyhow::{Context, Result};
use limiter_core::Limit;
use limiter_testkit::server::Server;
use redis::aio::ConnectionManager;
use serde::{Deserialize, Serialize};

use super::contestants::{Contestant, Gcra, Ours, Rate, connect};

pub(super) const NAME: &str = "bytes";
const ENTRIES: [u64; 4] = [1, 10, 100, 1000];

/// The size of a key, by its number of admitted units.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Bytes {
    /// The number of admitted units.
    pub entries: u64,
    /// Bytes of the limiter's key.
    pub ours: u64,
    /// Bytes of the GCRA key.
    pub gcra: u64,
}

/// Measures logs whose entries have cost 1.
pub(super) async fn measure(server: &Server) -> Result<Vec<Bytes>> {
    let connection = connect(&server.url()).await?;
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    let mut all = Vec::new();
    for entries in ENTRIES {
        let ours = Ours::new(connection.clone(), Limit::per_hour(entries)?.into())?;
        let gcra = Gcra::new(connection.clone(), Rate { burst: entries, seconds: 3600 });
        let key = format!("user:{entries:011}");
        for _ in 0..entries {
            ours.decide(&key, 1, true).await?;
        }
        gcra.decide(&key, entries, true).await?;
        let ours = usage(&connection, &ours.stored(&key)).await?;
        let gcra = usage(&connection, Gcra::stored(&key).as_bytes()).await?;
        all.push(Bytes { entries, ours, gcra });
    }
    Ok(all)
}

pub(super) async fn usage(connection: &ConnectionManager, stored: &[u8]) -> Result<u64> {
    let mut usage = redis::cmd("MEMORY");
    usage.arg("USAGE").arg(stored).arg("SAMPLES").arg(0);
    let bytes: Option<u64> = usage.query_async(&mut connection.clone()).await?;
    bytes.with_context(|| format!("the key {} is missing", stored.escape_ascii()))
}
