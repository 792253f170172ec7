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
use crate::script::{APPLY, APPLY_ALL, Arg};
use crate::server_clock::ServerClock;

/// The channel of a store's commands. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(crate) connection: Connection,
    pub(crate) retry_policy: RetryPolicy,
    clock: Arc<ServerClock>,
}

/// An operation in the form that the scripts read.
#[derive(Debug)]
pub(crate) struct EncodedOp {
    /// The Redis key.
    pub(crate) stored: Vec<u8>,
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

    /// Sends operations with their flags. Returns the reply of `apply_fast.lua` or `apply.lua` to one, and of `apply_all.lua` to
    /// several, which all give the same time or none.
    pub(crate) async fn apply(&self, ops: &mut [EncodedOp], flags: &[u8]) -> Result<Value, Failure> {
        let at = ops.first().and_then(|op| op.at);
        let gives_up = ops.iter().filter_map(|op| op.timeout).min();
        let gives_up = gives_up.and_then(|timeout| Instant::now().checked_add(timeout));
        let end = gives_up.map_or_else(|| self.end(), |gives_up| self.end().min(gives_up));
        let command = |attempt: Attempt| {
            // A given time says nothing about the server's clock.
            let gives_up = attempt.gives_up.filter(|_| at.is_none());
            let deadline = gives_up.and_then(|gives_up| self.clock.at(gives_up));
            ops.iter_mut().for_each(|op| set_deadline(&mut op.request, deadline));
            let since = attempt.since_first.map(|since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
            fn windows(op: &EncodedOp) -> Arg<'_> {
                Arg::Bytes(op.windows.as_deref().unwrap_or_default())
            }
            if let [op] = ops {
                let args = [Arg::Bytes(&op.request), at.into(), windows(op), since.into()];
                return APPLY.call(attempt.load, &[&op.stored], &args);
            }
            let keys: Vec<&[u8]> = ops.iter().map(|op| &*op.stored).collect();
            let requests = ops.iter().map(|op| Arg::Bytes(&op.request));
            let args = [Arg::Bytes(flags), at.into(), since.into()].into_iter().chain(requests);
            APPLY_ALL.call(attempt.load, &keys, &args.chain(ops.iter().map(windows)).collect::<Vec<_>>())
        };
        let reply = self.retry_policy.run(&self.connection, end, true, command).await?;
        if let Some(time) = reply::server_time(&reply.value).filter(|_| at.is_none()) {
            self.clock.learn(reply.sent, time);
        }
        Ok(reply.value)
    }
}
