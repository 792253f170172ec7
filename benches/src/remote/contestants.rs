//! The contestants: the limiter, the algorithm of `redis_rate`, a no-op script, sorted sets, and a peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

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
    let set = |connection, multi| Arc::new(SortedSet::new(connection, &policy, multi, true));
    let batch = if let Measure::Batches(size) = scenario.measure { size } else { 1 };
    Ok(match who {
        "limiter" => Arc::new(Ours(limiter("bench", connection, policy, false)?)),
        "group commit" => Arc::new(Ours(limiter("group", connection, policy, true)?)),
        "one by one" => Arc::new(Batch(limiter("bench", connection, policy, false)?, batch, false)),
        "`acquire_many`" => Arc::new(Batch(limiter("bench", connection, policy, false)?, batch, true)),
        "GCRA" => Arc::new(Gcra(ScriptByDigest::new(connection, include_str!("gcra.lua")), scenario.rate())),
        "no-op" => Arc::new(Noop(ScriptByDigest::new(connection, "local key, request = KEYS[1], ARGV[1] return 1"))),
        "trypema" => Arc::new(Trypema::new(connection, scenario.rate())?),
        "sorted set, script" => set(connection, false),
        "sorted set, MULTI" => set(connection, true),
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

/// Acquires of this many keys instead of each decision: one by one, or with `acquire_many`.
struct Batch(Limiter<RedisStore>, usize, bool);

#[async_trait]
impl Contestant for Batch {
    async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        let Self(limiter, batch, many) = self;
        let keys: Vec<String> = (0..*batch).map(|i| format!("{key}:{i}")).collect();
        if *many {
            for result in limiter.acquire_many(keys.iter().map(|key| (key, cost))).await {
                ensure!(result?.allowed() == allowed, "{key}: expected allowed: {allowed}");
            }
        } else {
            for key in &keys {
                let decision = limiter.acquire(key).cost(cost).await?;
                ensure!(decision.allowed() == allowed, "{key}: {decision:?}, expected allowed: {allowed}");
            }
        }
        Ok(())
    }
}

/// A script called in the way of `redis_rate`: by digest, over a connection of the redis crate.
struct ScriptByDigest {
    connection: ConnectionManager,
    script: Script,
}

impl ScriptByDigest {
    fn new(connection: ConnectionManager, text: &str) -> Self {
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

/// What most teams run: a sorted set with the time as the score.
pub(super) struct SortedSet {
    called: ScriptByDigest,
    /// Whether to use `MULTI` and `EXEC` in place of a script. All commands are sent before the count is known, so what is
    /// denied is added too.
    multi: bool,
    /// Whether a number behind the time tells the members of two requests apart. Otherwise requests of the same microsecond
    /// are one member.
    unique: bool,
    max: u64,
    window: Duration,
    next: AtomicU64,
}

impl SortedSet {
    pub(super) fn new(connection: ConnectionManager, policy: &Policy, multi: bool, unique: bool) -> Self {
        let (max, window) = (policy.largest_max(), policy.longest_window().as_duration());
        let called = ScriptByDigest::new(connection, include_str!("sorted_set.lua"));
        Self { called, multi, unique, max, window, next: AtomicU64::new(0) }
    }

    fn key(&self, key: &str) -> String {
        if self.multi { format!("multi:{key}") } else { format!("set:{key}") }
    }

    /// Decides at a time in microseconds. Returns whether the request was admitted.
    pub(super) async fn decide_at(&self, key: &str, now: u64) -> Result<bool> {
        let (stored, window) = (self.key(key), self.window.as_micros() as u64);
        let number = if self.unique { self.next.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let member = format!("{now}-{number}");
        let mut connection = self.called.connection.clone();
        if !self.multi {
            let mut call = self.called.script.key(stored);
            call.arg(now).arg(window).arg(self.max).arg(member);
            return Ok(call.invoke_async::<u64>(&mut connection).await? == 1);
        }
        let mut all = redis::pipe();
        all.atomic().cmd("ZREMRANGEBYSCORE").arg(&stored).arg(0).arg(now - window).ignore();
        all.cmd("ZCARD").arg(&stored);
        all.cmd("ZADD").arg(&stored).arg(now).arg(member).ignore();
        all.cmd("PEXPIRE").arg(&stored).arg(window.div_ceil(1000)).ignore();
        let (count,): (u64,) = all.query_async(&mut connection).await?;
        Ok(count < self.max)
    }
}

#[async_trait]
impl Contestant for SortedSet {
    async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        ensure!(cost == 1, "{key}: each member is one unit");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros() as u64;
        let admitted = self.decide_at(key, now).await?;
        ensure!(admitted == allowed, "{key}: {admitted}, expected {allowed}");
        Ok(())
    }

    fn stored(&self, key: &str) -> Option<Vec<u8>> {
        Some(self.key(key).into_bytes())
    }
}
