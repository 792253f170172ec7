//! The contestants in Redis: the limiter, and the algorithm of `redis_rate`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use limiter_core::store::LogKey;
use limiter_core::{AllOf, Limiter, Policy};
use limiter_redis::{Connection, RedisStore};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};

use super::scenario::{Call, Scenario};

/// Long, because the machine may be busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes decisions with known answers.
pub(super) enum Decider {
    /// This library.
    Ours(Limiter<RedisStore>, Call),
    /// Several limiters of this library, and whether they decide in one call.
    Several(Vec<Limiter<Arc<RedisStore>>>, bool),
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
        let several = |count: u8, jointly| -> Result<Self> {
            // One store, because calls on several are not made as one.
            let store = Arc::new(store(connection.clone())?);
            let limiter = |n| Limiter::new(format!("bench {n}"), policy.clone(), store.clone());
            Ok(Self::Several((0..count).map(limiter).collect(), jointly))
        };
        Ok(match (who, &scenario.call) {
            ("limiter", &Call::Joint(count)) => several(count, true)?,
            ("five calls", &Call::Joint(count)) => several(count, false)?,
            ("limiter", call) => {
                Self::Ours(limiter(connection, "bench", policy.clone())?, call.clone())
            }
            ("GCRA", _) => Self::Gcra(
                connection,
                Script::new(include_str!("gcra.lua")),
                scenario.rate(),
            ),
            _ => bail!("no contestant has the name {who}"),
        })
    }

    /// Returns the number of scripts of a decision.
    pub(super) fn scripts(&self) -> usize {
        match self {
            Self::Several(limiters, false) => limiters.len(),
            _ => 1,
        }
    }

    /// Makes decision `number` on `cost` units of a key. Returns an error if the verdict is not `allowed`.
    pub(super) async fn decide(
        &self,
        number: usize,
        key: &str,
        cost: u64,
        allowed: bool,
    ) -> Result<()> {
        let verdict = match self {
            Self::Ours(limiter, call) => {
                let acquire = limiter.acquire(key).cost(cost);
                let decision = match call {
                    Call::Acquire | Call::Joint(_) => acquire.await?,
                    Call::Record => limiter.record(key).cost(cost).await?,
                    Call::Id => acquire.idempotency_key(number as u128).await?,
                    Call::Own(policy) => acquire.policy(policy).await?,
                };
                decision.fits()
            }
            Self::Several(limiters, true) => {
                let joint = limiters.iter().fold(AllOf::new(), |joint, limiter| {
                    joint.with(limiter.acquire(key).cost(cost))
                });
                !joint.await?.is_denied()
            }
            Self::Several(limiters, false) => {
                let mut all = true;
                for limiter in limiters {
                    all &= limiter.acquire(key).cost(cost).await?.is_allowed();
                }
                all
            }
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
        let of = |store: &RedisStore, name| store.redis_key(LogKey::new(name, key));
        match self {
            Self::Ours(limiter, _) => of(limiter.store(), limiter.name()),
            Self::Several(limiters, _) => of(limiters[0].store(), limiters[0].name()),
            Self::Gcra(..) => format!("rate:{key}").into_bytes(),
        }
    }
}

/// Returns a reconnecting connection that all tasks share.
pub(crate) async fn connect(url: &str) -> Result<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    Ok(ConnectionManager::new_with_config(Client::open(url)?, config).await?)
}

/// Returns a store that waits long, and makes each call once.
pub(crate) fn store(connection: ConnectionManager) -> Result<RedisStore> {
    let builder = RedisStore::builder()
        .response_timeout(RESPONSE_TIMEOUT)
        .retries(0);
    Ok(builder.with_connection(Connection::new(connection))?)
}

/// Returns a limiter in Redis.
pub(super) fn limiter(
    connection: ConnectionManager,
    name: &str,
    policy: Policy,
) -> Result<Limiter<RedisStore>> {
    Ok(Limiter::new(name, policy, store(connection)?))
}
