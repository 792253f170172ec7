//! Sends operations, with their deadlines.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::address::Address;
use crate::attempt::{Attempt, Reply, RetryPolicy};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::reply;
use crate::request::set_deadline;
use crate::script::{APPLY, Arg};
use crate::server_clock::ServerClock;

/// What a store sends its commands through. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(crate) connection: Connection,
    pub(crate) retry_policy: RetryPolicy,
    clock: Arc<ServerClock>,
}

/// An operation in the form that the scripts read.
#[derive(Debug)]
pub(crate) struct EncodedOp<'a> {
    /// The Redis key.
    pub(crate) stored: &'a [u8],
    pub(crate) request: Vec<u8>,
    /// The given time.
    pub(crate) at: Option<u64>,
    /// The windows by which entries merge, if a limit has a resolution.
    pub(crate) windows: Option<Vec<u8>>,
    /// How long the caller waits.
    pub(crate) timeout: Option<Duration>,
}

impl Channel {
    pub(crate) fn new(connection: Connection, retry_policy: RetryPolicy) -> Self {
        Self { connection, retry_policy, clock: Arc::new(ServerClock::new()) }
    }

    /// Returns when a call that begins now ends at the latest.
    pub(crate) fn end(&self) -> Instant {
        self.retry_policy.end()
    }

    /// Sends a command.
    pub(crate) async fn run(&self, command: impl FnMut(Attempt) -> Cmd) -> Result<Reply, Failure> {
        self.retry_policy.run(&self.connection, self.end(), true, command).await
    }

    /// Sends a command that must not be repeated after a lost reply.
    pub(crate) async fn run_once(&self, cmd: &Cmd) -> Result<Value, Failure> {
        let reply = self.retry_policy.run(&self.connection, self.end(), false, |_| cmd.clone()).await;
        reply.map(|reply| reply.value)
    }

    /// Sends a command to one node of a Cluster, or to any.
    pub(crate) async fn run_on(&self, node: Option<&Address>, cmd: &Cmd) -> Result<Reply, Failure> {
        let node = self.connection.node(node).map_err(Failure::Redis)?;
        self.retry_policy.run(&node, self.end(), true, |_| cmd.clone()).await
    }

    /// Sends an operation. Returns the reply of `apply_fast.lua` or `apply.lua`.
    pub(crate) async fn apply(&self, op: &mut EncodedOp<'_>) -> Result<Value, Failure> {
        let EncodedOp { stored, request, at, windows, timeout } = op;
        let windows = windows.as_deref().unwrap_or_default();
        let command = |attempt: Attempt| {
            // A given time says nothing about the server's clock.
            let gives_up = attempt.gives_up.filter(|_| at.is_none());
            set_deadline(request, gives_up.and_then(|gives_up| self.clock.at(gives_up)));
            let since = attempt.since_first.map(|since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
            let args = [Arg::Bytes(request), (*at).into(), Arg::Bytes(windows), since.into()];
            APPLY.call(attempt.load, stored, &args)
        };
        let gives_up = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let end = gives_up.map_or_else(|| self.end(), |gives_up| self.end().min(gives_up));
        let reply = self.retry_policy.run(&self.connection, end, true, command).await?;
        if let Some(time) = reply::server_time(&reply.value).filter(|_| at.is_none()) {
            self.clock.learn(reply.sent, time);
        }
        Ok(reply.value)
    }
}
