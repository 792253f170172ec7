//! What a server needs: memory and processor time by the length of the logs and by the longest log that Redis keeps compact.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use limiter_core::Limit;
use limiter_testkit::server::Server;
use redis::aio::ConnectionManager;
use serde::{Deserialize, Serialize};

use super::contestants::{Contestant, Ours, connect};
use super::effort::Effort;
use super::memory::usage;
use super::server_time::{MAX_IN_FLIGHT, Spread, processor};
use super::textbook::{offer, spent};

pub(super) const NAME: &str = "sizing";
/// The entries of a log, and `zset-max-listpack-entries`. The default of Redis is 128.
const CASES: [(u64, u64); 6] = [(10, 128), (100, 128), (400, 128), (400, 512), (1000, 128), (100_000, 128)];
/// So long that nothing expires during a measurement.
const WINDOW: Duration = Duration::from_secs(86_400);
const PLENTY: u64 = 10_000_000;
/// How many keys share the decisions of a turn, so that their logs hardly grow.
const KEYS: u64 = 50;

/// What logs of one length need.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Sizing {
    /// The entries of a log.
    pub entries: u64,
    /// The server's `zset-max-listpack-entries`.
    pub listpack: u64,
    /// The bytes of one log.
    pub bytes: u64,
    /// Microseconds in the script for an allowed decision.
    pub script: f64,
    /// Microseconds of the server's processor time for an allowed decision, which includes the request and the reply.
    pub allowed: f64,
    /// The same for a denied decision.
    pub denied: f64,
}

/// Measures all cases, and restores the server's setting.
pub(super) async fn measure(server: &Server, effort: Effort) -> Result<Vec<Sizing>> {
    let connection = connect(&server.url()).await?;
    let mut all = Vec::new();
    for (entries, listpack) in CASES {
        set_listpack(&connection, listpack).await?;
        all.push(case(&connection, entries.min(effort.keys as u64), listpack, effort).await?);
    }
    set_listpack(&connection, 128).await?;
    Ok(all)
}

async fn set_listpack(connection: &ConnectionManager, entries: u64) -> Result<()> {
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    // Redis 6.2 has this name only, and later versions have it too.
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("zset-max-ziplist-entries").arg(entries);
    set.exec_async(&mut connection.clone()).await.context("cannot set zset-max-ziplist-entries")
}

async fn case(connection: &ConnectionManager, entries: u64, listpack: u64, effort: Effort) -> Result<Sizing> {
    let allowing = Ours::new(connection.clone(), Limit::new(PLENTY, WINDOW)?.into())?;
    let denying = Ours::new(connection.clone(), Limit::new(entries, WINDOW)?.into())?;
    let keys: Vec<String> = (0..(100_000 / entries).clamp(1, KEYS)).map(|key| format!("{key:016}")).collect();
    let stored: Vec<Vec<u8>> = keys.iter().map(|key| allowing.stored(key)).collect();
    offer(&allowing, &keys[..1], entries as usize, true).await?;
    for to in &stored[1..] {
        let done: u64 = redis::cmd("COPY").arg(&stored[0]).arg(to).query_async(&mut connection.clone()).await?;
        ensure!(done == 1, "a key could not be copied");
    }
    let bytes = usage(connection, &stored[0]).await?;
    let [mut script, mut allowed, mut denied] = [const { Vec::new() }; 3];
    for _ in 0..effort.rounds {
        let turn = turn(connection, &denying, &keys, effort.calls, false).await?;
        denied.push(turn.1);
        let turn = self::turn(connection, &allowing, &keys, effort.calls, true).await?;
        script.push(turn.0);
        allowed.push(turn.1);
        for key in &stored {
            // The log as it was before the turn.
            let mut trim = redis::cmd("ZREMRANGEBYRANK");
            trim.arg(key).arg(entries).arg(-1).exec_async(&mut connection.clone()).await?;
        }
    }
    let [script, allowed, denied] = [script, allowed, denied].map(|samples| Spread::of(samples).median);
    Ok(Sizing { entries, listpack, bytes, script, allowed, denied })
}

/// Runs one turn. Returns the microseconds of a decision in the script and of processor time.
async fn turn(
    connection: &ConnectionManager,
    ours: &dyn Contestant,
    keys: &[String],
    calls: usize,
    allowed: bool,
) -> Result<(f64, f64)> {
    offer(ours, keys, MAX_IN_FLIGHT, allowed).await?;
    let before = (spent(connection).await?, processor(connection).await?);
    offer(ours, keys, calls, allowed).await?;
    let after = (processor(connection).await?, spent(connection).await?);
    Ok(((after.1 - before.0) / calls as f64, (after.0 - before.1) / calls as f64))
}
