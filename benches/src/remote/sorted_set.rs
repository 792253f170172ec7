//! What most teams run: a sorted set with the time as the score, in a script or in a transaction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use redis::aio::ConnectionManager;

use super::contestants::{Contestant, ScriptByDigest};

/// How a sorted set is queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A script, which adds what it admits.
    Script,
    /// `MULTI` and `EXEC`. All commands are sent before the count is known, so what is denied is added too.
    Transaction,
}

/// What tells the members of two requests apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    /// A number behind the time.
    Unique,
    /// Nothing but the time, in microseconds. Requests of the same microsecond are one member.
    Time,
}

/// The textbook's limiter.
pub(super) struct SortedSet {
    called: ScriptByDigest,
    form: Form,
    member: Member,
    max: u64,
    window: Duration,
    next: AtomicU64,
}

impl SortedSet {
    pub(super) fn new(connection: ConnectionManager, form: Form, member: Member, max: u64, window: Duration) -> Self {
        let called = ScriptByDigest::new(connection, include_str!("sorted_set.lua"));
        Self { called, form, member, max, window, next: AtomicU64::new(0) }
    }

    fn key(&self, key: &str) -> String {
        match self.form {
            Form::Script => format!("set:{key}"),
            Form::Transaction => format!("multi:{key}"),
        }
    }

    /// Decides at a time in microseconds. Returns whether the request was admitted.
    pub(super) async fn decide_at(&self, key: &str, now: u64) -> Result<bool> {
        let (stored, window) = (self.key(key), self.window.as_micros() as u64);
        let member = match self.member {
            Member::Time => now.to_string(),
            Member::Unique => format!("{now}-{}", self.next.fetch_add(1, Ordering::Relaxed)),
        };
        let mut connection = self.called.connection.clone();
        if self.form == Form::Script {
            let mut call = self.called.script.key(stored);
            let admitted: u64 =
                call.arg(now).arg(window).arg(self.max).arg(member).invoke_async(&mut connection).await?;
            return Ok(admitted == 1);
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
