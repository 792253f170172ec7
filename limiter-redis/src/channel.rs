//! Sends operations, with their deadlines.

use std::sync::Arc;

use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::attempt::{Attempt, Reply, RetryPolicy};
use crate::connection::{Address, Connection};
use crate::failure::Failure;
use crate::format::{DENIED_BYTE, OP_HEAD_LEN, OWN_ID_LEN};
use crate::reply;
use crate::request::set_deadline;
use crate::script::{APPLY, APPLY_GROUP, APPLY_GROUP_MERGING, APPLY_MERGING, Arg};
use crate::server_clock::ServerClock;

/// The end of the store's entry id in a request. Operations that may share a call differ only in its last 4 bytes.
const OWN_ID_END: usize = OP_HEAD_LEN + OWN_ID_LEN;
const OWN_ID_START: usize = OWN_ID_END - 4;
/// The first of these bytes has this bit if the entry is kept.
const KEPT_BYTE: u8 = DENIED_BYTE as u8;

/// What a store sends its commands through. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(crate) connection: Connection,
    pub(crate) retry_policy: RetryPolicy,
    clock: Arc<ServerClock>,
}

/// An operation in the form that the scripts read.
#[derive(Debug)]
pub(crate) struct Call {
    /// The Redis key.
    pub(crate) stored: Arc<[u8]>,
    pub(crate) request: Vec<u8>,
    /// The given time.
    pub(crate) at: Option<u64>,
    /// Whether it may share a call: an acquire without a caller's id, of which only admitted ones count.
    pub(crate) groups: bool,
    /// Whether its entry may merge with others: a limit has a resolution.
    pub(crate) merges: bool,
}

impl Call {
    /// Returns whether both may share a call, which requires that they differ only in their entry ids, and that both or neither
    /// entry is kept.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let groups = |call: &Self| call.groups && call.request.len() >= OWN_ID_END;
        let keeps = |call: &Self| call.request[OWN_ID_START] >= KEPT_BYTE;
        groups(self)
            && groups(other)
            && keeps(self) == keeps(other)
            && self.at == other.at
            && self.stored == other.stored
            && self.request[..OWN_ID_START] == other.request[..OWN_ID_START]
            && self.request[OWN_ID_END..] == other.request[OWN_ID_END..]
    }
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
        self.retry_policy.run(&self.connection, self.end(), command).await
    }

    /// Sends a command to one node of a Cluster, or to any.
    pub(crate) async fn run_on(&self, node: Option<&Address>, cmd: &Cmd) -> Result<Reply, Failure> {
        let node = self.connection.node(node).map_err(Failure::Redis)?;
        self.retry_policy.run(&node, self.end(), |_| cmd.clone()).await
    }

    /// Sends an operation, or several that may share a call as one command. Returns the reply of `apply_fast.lua` or `apply.lua`,
    /// and for several that of `apply_group.lua`.
    pub(crate) async fn apply(&self, calls: &mut [Call], end: Instant) -> Result<Value, Failure> {
        let (scripts, ids) = match &calls[..] {
            [_] => ([&APPLY, &APPLY_MERGING], Vec::new()),
            calls => {
                let ids = calls.iter().flat_map(|call| &call.request[OWN_ID_START..OWN_ID_END]).copied();
                ([&APPLY_GROUP, &APPLY_GROUP_MERGING], ids.collect())
            }
        };
        let Some(Call { stored, request, at, merges, .. }) = calls.first_mut() else { return Ok(Value::Nil) };
        let script = scripts[usize::from(*merges)];
        let command = |attempt: Attempt| {
            // A given time says nothing about the server's clock.
            let gives_up = attempt.gives_up.filter(|_| at.is_none());
            set_deadline(request, gives_up.and_then(|gives_up| self.clock.at(gives_up)));
            let since = attempt.since_first.map(|since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
            script.call(attempt.load, stored, &[Arg::Bytes(request), (*at).into(), since.into(), Arg::Bytes(&ids)])
        };
        let reply = self.retry_policy.run(&self.connection, end, command).await?;
        if let Some(time) = reply::server_time(&reply.value).filter(|_| at.is_none()) {
            self.clock.learn(reply.sent, time);
        }
        Ok(reply.value)
    }
}
