//! The contestants: the limiter, the algorithm of `redis_rate`, a no-op script, and sorted sets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail, ensure};
use limiter_core::store::LogKey;
use limiter_core::{Limiter, Policy};
use limiter_redis::{Connection, RedisStore};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};

use super::scenario::{Measure, Scenario};

/// Long, because the machine may be busy.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A rate limiter in Redis.
pub(super) enum Contestant {
    /// This library.
    Ours(Limiter<RedisStore>),
    /// Acquires of this many keys instead of each decision: one by one, or with `acquire_many`.
    Batch(Limiter<RedisStore>, usize, bool),
    /// The algorithm of `redis_rate`, with a burst and the seconds in which it refills.
    Gcra(ScriptByDigest, (u64, u64)),
    /// A baseline: a script that takes a key and an argument as long as the limiter's, and does nothing.
    Noop(ScriptByDigest),
    SortedSet(SortedSet),
}

impl Contestant {
    /// Returns a contestant of a scenario, under this policy.
    pub(super) fn new(who: &str, scenario: &Scenario, policy: &Policy, connection: &ConnectionManager) -> Result<Self> {
        let script = |text| ScriptByDigest { connection: connection.clone(), script: Script::new(text) };
        let set = |multi| Self::SortedSet(SortedSet::new(connection.clone(), policy, multi));
        let limiter = || limiter("bench", connection.clone(), policy.clone());
        let batch = if let Measure::Batches(size) = scenario.measure { size } else { 1 };
        Ok(match who {
            "limiter" => Self::Ours(limiter()?),
            "one by one" => Self::Batch(limiter()?, batch, false),
            "`acquire_many`" => Self::Batch(limiter()?, batch, true),
            "GCRA" => Self::Gcra(script(include_str!("gcra.lua")), scenario.rate()),
            "no-op" => Self::Noop(script("local key, request = KEYS[1], ARGV[1] return 1")),
            "sorted set, script" => set(false),
            "sorted set, MULTI" => set(true),
            _ => bail!("no contestant has the name {who}"),
        })
    }

    /// Makes a decision on `cost` units of a key. Returns an error if the verdict is not `allowed`.
    pub(super) async fn decide(&self, key: &str, cost: u64, allowed: bool) -> Result<()> {
        let verdict = match self {
            Self::Ours(limiter) => limiter.acquire(key).cost(cost).await?.allowed(),
            Self::Batch(limiter, size, together) => {
                let keys: Vec<String> = (0..*size).map(|i| format!("{key}:{i}")).collect();
                let mut verdict = true;
                if *together {
                    for result in limiter.acquire_many(keys.iter().map(|key| (key, cost))).await {
                        verdict &= result?.allowed();
                    }
                } else {
                    for key in &keys {
                        verdict &= limiter.acquire(key).cost(cost).await?.allowed();
                    }
                }
                verdict
            }
            Self::Gcra(called, (burst, seconds)) => {
                let mut call = called.script.key(format!("rate:{key}"));
                call.arg(burst).arg(burst).arg(seconds).arg(cost);
                let reply: (u64, u64, String, String) = call.invoke_async(&mut called.connection.clone()).await?;
                reply.0 == cost
            }
            Self::Noop(called) => {
                let mut call = called.script.key(format!("none:{key}"));
                let reply: u64 = call.arg(&[0x80_u8; 35]).invoke_async(&mut called.connection.clone()).await?;
                (reply == 1) == allowed
            }
            Self::SortedSet(set) => {
                ensure!(cost == 1, "{key}: each member is one unit");
                set.decide(key).await?
            }
        };
        ensure!(verdict == allowed, "{key}: {verdict}, expected {allowed}");
        Ok(())
    }

    /// Returns the Redis key that holds all of a key's data. `None` if there is none, or if there are several.
    pub(super) fn stored(&self, key: &str) -> Option<Vec<u8>> {
        match self {
            Self::Ours(limiter) => Some(limiter.store().redis_key(LogKey::new(limiter.name(), key))),
            Self::Gcra(..) => Some(format!("rate:{key}").into_bytes()),
            Self::SortedSet(set) => Some(set.key(key).into_bytes()),
            Self::Batch(..) | Self::Noop(..) => None,
        }
    }
}

/// A script called in the way of `redis_rate`: by digest, over a connection of the redis crate.
pub(super) struct ScriptByDigest {
    connection: ConnectionManager,
    script: Script,
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
) -> Result<Limiter<RedisStore>> {
    let builder = RedisStore::builder().response_timeout(RESPONSE_TIMEOUT).retries(0);
    Ok(Limiter::new(name, policy, builder.with_connection(Connection::from(connection))?))
}

/// What most teams run: a sorted set with the time as the score.
pub(super) struct SortedSet {
    called: ScriptByDigest,
    /// Whether to use `MULTI` and `EXEC` in place of a script. All commands are sent before the count is known, so what is
    /// denied is added too.
    multi: bool,
    max: u64,
    window: Duration,
    /// Follows the time in each member, because several requests may come within a microsecond.
    next: AtomicU64,
}

impl SortedSet {
    fn new(connection: ConnectionManager, policy: &Policy, multi: bool) -> Self {
        let (max, window) = (policy.largest_max(), policy.longest_window().as_duration());
        let called = ScriptByDigest { connection, script: Script::new(include_str!("sorted_set.lua")) };
        Self { called, multi, max, window, next: AtomicU64::new(0) }
    }

    fn key(&self, key: &str) -> String {
        if self.multi { format!("multi:{key}") } else { format!("set:{key}") }
    }

    /// Returns whether the request was admitted.
    async fn decide(&self, key: &str) -> Result<bool> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros() as u64;
        let (stored, window) = (self.key(key), self.window.as_micros() as u64);
        let member = format!("{now}-{}", self.next.fetch_add(1, Ordering::Relaxed));
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
