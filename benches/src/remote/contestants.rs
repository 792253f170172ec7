//! The contestants: the limiter, the algorithm of `redis_rate`, a no-op script, and peers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::BoxFuture;
use limiter_core::store::LogKey;
use limiter_core::{Limiter, Policy};
use limiter_redis::{Connection, RedisStore};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

/// Long, because the machine may be busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A rate limiter in Redis.
pub(super) trait Contestant: Send + Sync {
    /// Returns its name in the tables.
    fn name(&self) -> &'static str;

    /// Makes a decision on `cost` units of a key. Returns an error if the verdict is not `allowed`.
    fn decide<'a>(&'a self, key: &'a str, cost: u64, allowed: bool) -> BoxFuture<'a, Result<()>>;
}

/// Returns a reconnecting connection that all tasks share.
pub(super) async fn connect(url: &str) -> Result<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    Ok(ConnectionManager::new_with_config(Client::open(url)?, config).await?)
}

/// This library.
pub(super) struct Ours(pub(super) Limiter<RedisStore>);

impl Ours {
    pub(super) const NAME: &str = "limiter";

    /// Returns the Redis key.
    pub(super) fn stored(&self, key: &str) -> Vec<u8> {
        self.0.store().redis_key(LogKey::new(self.0.name(), key))
    }

    pub(super) fn new(connection: ConnectionManager, policy: Policy) -> Result<Self> {
        Self::with_group_commit(connection, policy, false)
    }

    pub(super) fn with_group_commit(connection: ConnectionManager, policy: Policy, group_commit: bool) -> Result<Self> {
        let builder = RedisStore::builder().response_timeout(RESPONSE_TIMEOUT).retries(0).group_commit(group_commit);
        Ok(Self(Limiter::new("bench", policy, builder.with_connection(Connection::from(connection))?)))
    }
}

impl Contestant for Ours {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn decide<'a>(&'a self, key: &'a str, cost: u64, allowed: bool) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let decision = self.0.acquire(key).cost(cost).await?;
            ensure!(decision.allowed() == allowed, "{key}: {decision:?}, expected allowed: {allowed}");
            Ok(())
        })
    }
}

/// A script called in the way of `redis_rate`: by digest, over a connection of the redis crate.
pub(super) struct ScriptByDigest {
    pub(super) connection: ConnectionManager,
    pub(super) script: Arc<Script>,
}

impl ScriptByDigest {
    pub(super) fn new(connection: ConnectionManager, text: &str) -> Self {
        Self { connection, script: Arc::new(Script::new(text)) }
    }
}

/// A burst, and the time in which it refills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) burst: u64,
    pub(super) seconds: u64,
}

/// The algorithm of `redis_rate`.
pub(super) struct Gcra {
    called: ScriptByDigest,
    rate: Rate,
}

impl Gcra {
    pub(super) const NAME: &str = "GCRA";

    /// Returns the Redis key.
    pub(super) fn stored(key: &str) -> String {
        format!("rate:{key}")
    }

    pub(super) fn new(connection: ConnectionManager, rate: Rate) -> Self {
        Self { called: ScriptByDigest::new(connection, include_str!("gcra.lua")), rate }
    }
}

impl Contestant for Gcra {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn decide<'a>(&'a self, key: &'a str, cost: u64, allowed: bool) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Rate { burst, seconds } = self.rate;
            let mut call = self.called.script.key(Self::stored(key));
            call.arg(burst).arg(burst).arg(seconds).arg(cost);
            let reply: (u64, u64, String, String) = call.invoke_async(&mut self.called.connection.clone()).await?;
            let expected = if allowed { cost } else { 0 };
            ensure!(reply.0 == expected, "{key}: {reply:?}, expected allowed: {allowed}");
            Ok(())
        })
    }
}

/// A baseline: a script that takes a key and an argument as long as the limiter's, and does nothing.
pub(super) struct Noop(ScriptByDigest);

impl Noop {
    pub(super) const NAME: &str = "no-op";

    pub(super) fn new(connection: ConnectionManager) -> Self {
        Self(ScriptByDigest::new(connection, "local key, request = KEYS[1], ARGV[1] return 1"))
    }
}

impl Contestant for Noop {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn decide<'a>(&'a self, key: &'a str, _: u64, _: bool) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut call = self.0.script.key(format!("none:{key}"));
            let reply: u64 = call.arg(&[0x80_u8; 35]).invoke_async(&mut self.0.connection.clone()).await?;
            ensure!(reply == 1, "{key}: {reply}, expected 1");
            Ok(())
        })
    }
}

/// The Redis provider of trypema, absolute, with its default buckets.
pub(super) struct Trypema {
    provider: Arc<RedisRateLimiterProvider>,
    rate: RateLimit,
}

impl Trypema {
    pub(super) const NAME: &str = "trypema";
    /// The oldest Redis version that it supports.
    pub(super) const NEEDS: (u32, u32) = (7, 2);

    pub(super) fn new(connection: ConnectionManager, rate: Rate) -> Result<Self> {
        let builder = RedisRateLimiterProvider::builder(connection).window_size(WindowSize::seconds(rate.seconds)?);
        let per_second = rate.burst as f64 / rate.seconds as f64;
        Ok(Self { provider: builder.disable_cleanup().build()?, rate: RateLimit::per_second(per_second)? })
    }
}

impl Contestant for Trypema {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn decide<'a>(&'a self, key: &'a str, cost: u64, allowed: bool) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let key = RedisKey::try_from(key.to_owned())?;
            let decision = self.provider.absolute().inc(&key, &self.rate, cost).await?;
            let fits = matches!(decision, RateLimitDecision::Allowed);
            ensure!(fits == allowed, "{key:?}: {decision:?}, expected allowed: {allowed}");
            Ok(())
        })
    }
}
