//! The contestants in Redis: the limiter, and the algorithm of `redis_rate`.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use limiter_core::store::LogKey;
use limiter_core::{Limiter, Policy};
use limiter_redis::{Connection, RedisStore};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};

use super::scenario::Scenario;

/// Long, because the machine may be busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Decides with one script per decision.
pub(super) enum Decider {
    /// This library, and whether it records.
    Ours(Limiter<RedisStore>, bool),
    /// The algorithm of `redis_rate`, with a burst and the seconds in which it refills. Called in the way of `redis_rate`: by
    /// digest, over a connection of the redis crate.
    Gcra(ConnectionManager, Script, (u64, u64)),
}

impl Decider {
    /// Returns a contestant of a scenario, with this policy.
    pub(super) fn new(
        who: &str,
        scenario: &Scenario,
        policy: &Policy,
        connection: ConnectionManager,
    ) -> Result<Self> {
        Ok(match who {
            "limiter" => Self::Ours(limiter(connection, policy.clone())?, scenario.records),
            "GCRA" => Self::Gcra(
                connection,
                Script::new(include_str!("gcra.lua")),
                scenario.rate(),
            ),
            _ => bail!("no contestant has the name {who}"),
        })
    }

    /// Makes a decision on `cost` units of a key. Returns an error if the verdict is not `allowed`.
    pub(super) async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        let verdict = match self {
            Self::Ours(limiter, false) => limiter.acquire(key).cost(cost).await?.is_allowed(),
            Self::Ours(limiter, true) => limiter.record(key).cost(cost).await?.fits(),
            Self::Gcra(connection, script, (burst, seconds)) => {
                let mut call = script.key(format!("rate:{key}"));
                call.arg(burst).arg(burst).arg(seconds).arg(cost);
                let reply: (u64, u64, String, String) =
                    call.invoke_async(&mut connection.clone()).await?;
                reply.0 == cost
            }
        };
        ensure!(verdict == allowed, "{key}: {verdict}, expected {allowed}");
        Ok(())
    }

    /// Returns the Redis key that holds all of a key's data.
    pub(super) fn stored(&self, key: &str) -> Vec<u8> {
        match self {
            Self::Ours(limiter, _) => limiter.store().redis_key(LogKey::new(limiter.name(), key)),
            Self::Gcra(..) => format!("rate:{key}").into_bytes(),
        }
    }
}

/// Returns a reconnecting connection that all tasks share.
pub(super) async fn connect(url: &str) -> Result<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    Ok(ConnectionManager::new_with_config(Client::open(url)?, config).await?)
}

/// Returns a limiter in Redis.
pub(super) fn limiter(
    connection: ConnectionManager,
    policy: Policy,
) -> Result<Limiter<RedisStore>> {
    let builder = RedisStore::builder()
        .response_timeout(RESPONSE_TIMEOUT)
        .retries(0);
    Ok(Limiter::new(
        "bench",
        policy,
        builder.with_connection(Connection::new(connection))?,
    ))
}
