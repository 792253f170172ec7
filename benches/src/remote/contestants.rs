//! The contestants: the limiter, the algorithm of `redis_rate`, a no-op script, sorted sets, and a peer.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use limiter_core::store::LogKey;
use limiter_core::{Limiter, Policy};
use limiter_redis::{Connection, RedisStore};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::scenario::{Measure, Scenario};
use super::sorted_set::{Form, Member, SortedSet};

/// Long, because the machine may be busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A rate limiter in Redis.
#[async_trait]
pub(super) trait Contestant: Send + Sync {
    /// Makes a decision on `cost` units of a key. Returns an error if the verdict is not `allowed`.
    async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()>;

    /// Returns the Redis key that holds all of a key's data. `None` if there is none, or if there are several.
    fn stored(&self, _key: &str) -> Option<Vec<u8>> {
        None
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
    name: &'static str,
    connection: ConnectionManager,
    policy: Policy,
    group_commit: bool,
) -> Result<Limiter<RedisStore>> {
    let builder = RedisStore::builder().response_timeout(RESPONSE_TIMEOUT).retries(0).group_commit(group_commit);
    Ok(Limiter::new(name, policy, builder.with_connection(Connection::from(connection))?))
}

/// Returns a contestant of a scenario, under this policy.
pub(super) fn contestant(
    who: &str,
    scenario: &Scenario,
    policy: Policy,
    connection: ConnectionManager,
) -> Result<Arc<dyn Contestant>> {
    let set = |connection, form| {
        let (max, window) = (policy.largest_max(), policy.longest_window().as_duration());
        Arc::new(SortedSet::new(connection, form, Member::Unique, max, window))
    };
    let batch = if let Measure::Batches(size) = scenario.measure { size } else { 1 };
    Ok(match who {
        "limiter" => Arc::new(Ours(limiter("bench", connection, policy, false)?)),
        "group commit" => Arc::new(Ours(limiter("group", connection, policy, true)?)),
        "one by one" => Arc::new(Batch { limiter: limiter("bench", connection, policy, false)?, batch, many: false }),
        "`acquire_many`" => {
            Arc::new(Batch { limiter: limiter("bench", connection, policy, false)?, batch, many: true })
        }
        "GCRA" => Arc::new(Gcra(ScriptByDigest::new(connection, include_str!("gcra.lua")), scenario.rate())),
        "no-op" => Arc::new(Noop(ScriptByDigest::new(connection, "local key, request = KEYS[1], ARGV[1] return 1"))),
        "trypema" => Arc::new(Trypema::new(connection, scenario.rate())?),
        "sorted set, script" => set(connection, Form::Script),
        "sorted set, MULTI" => set(connection, Form::Transaction),
        _ => bail!("no contestant has the name {who}"),
    })
}

/// This library.
struct Ours(Limiter<RedisStore>);

#[async_trait]
impl Contestant for Ours {
    async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        let decision = self.0.acquire(key).cost(cost).await?;
        ensure!(decision.allowed() == allowed, "{key}: {decision:?}, expected allowed: {allowed}");
        Ok(())
    }

    fn stored(&self, key: &str) -> Option<Vec<u8>> {
        Some(self.0.store().redis_key(LogKey::new(self.0.name(), key)))
    }
}

/// A batch of acquires of different keys instead of each decision: one by one, or with `acquire_many`.
struct Batch {
    limiter: Limiter<RedisStore>,
    batch: usize,
    many: bool,
}

#[async_trait]
impl Contestant for Batch {
    async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        let keys: Vec<String> = (0..self.batch).map(|i| format!("{key}:{i}")).collect();
        if self.many {
            for result in self.limiter.acquire_many(keys.iter().map(|key| (key, cost))).await {
                ensure!(result?.allowed() == allowed, "{key}: expected allowed: {allowed}");
            }
        } else {
            for key in &keys {
                let decision = self.limiter.acquire(key).cost(cost).await?;
                ensure!(decision.allowed() == allowed, "{key}: {decision:?}, expected allowed: {allowed}");
            }
        }
        Ok(())
    }
}

/// A script called in the way of `redis_rate`: by digest, over a connection of the redis crate.
pub(super) struct ScriptByDigest {
    pub(super) connection: ConnectionManager,
    pub(super) script: Script,
}

impl ScriptByDigest {
    pub(super) fn new(connection: ConnectionManager, text: &str) -> Self {
        Self { connection, script: Script::new(text) }
    }
}

/// The algorithm of `redis_rate`.
struct Gcra(ScriptByDigest, (u64, u64));

#[async_trait]
impl Contestant for Gcra {
    async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        let Self(called, (burst, seconds)) = self;
        let mut call = called.script.key(format!("rate:{key}"));
        call.arg(burst).arg(burst).arg(seconds).arg(cost);
        let reply: (u64, u64, String, String) = call.invoke_async(&mut called.connection.clone()).await?;
        let expected = if allowed { cost } else { 0 };
        ensure!(reply.0 == expected, "{key}: {reply:?}, expected allowed: {allowed}");
        Ok(())
    }

    fn stored(&self, key: &str) -> Option<Vec<u8>> {
        Some(format!("rate:{key}").into_bytes())
    }
}

/// A baseline: a script that takes a key and an argument as long as the limiter's, and does nothing.
struct Noop(ScriptByDigest);

#[async_trait]
impl Contestant for Noop {
    async fn decide(&self, key: &str, _: u64, _: bool) -> Result<()> {
        let mut call = self.0.script.key(format!("none:{key}"));
        let reply: u64 = call.arg(&[0x80_u8; 35]).invoke_async(&mut self.0.connection.clone()).await?;
        ensure!(reply == 1, "{key}: {reply}, expected 1");
        Ok(())
    }
}

/// The Redis provider of trypema, absolute, with its default buckets.
struct Trypema {
    provider: Arc<RedisRateLimiterProvider>,
    rate: RateLimit,
}

impl Trypema {
    fn new(connection: ConnectionManager, (burst, seconds): (u64, u64)) -> Result<Self> {
        let builder = RedisRateLimiterProvider::builder(connection).window_size(WindowSize::seconds(seconds)?);
        let per_second = burst as f64 / seconds as f64;
        Ok(Self { provider: builder.disable_cleanup().build()?, rate: RateLimit::per_second(per_second)? })
    }
}

#[async_trait]
impl Contestant for Trypema {
    async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        let key = RedisKey::try_from(key.to_owned())?;
        let decision = self.provider.absolute().inc(&key, &self.rate, cost).await?;
        let fits = matches!(decision, RateLimitDecision::Allowed);
        ensure!(fits == allowed, "{key:?}: {decision:?}, expected allowed: {allowed}");
        Ok(())
    }
}
