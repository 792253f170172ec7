//! Sends operations, with their deadlines.

use std::time::Duration;

use redis::Value;

use crate::attempt::{Attempt, RetryPolicy};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::reply;
use crate::request::{repetition, set_deadline};
use crate::script::APPLY;
use crate::server_clock::ServerClock;

/// The channel of a store's commands.
pub(crate) struct Channel {
    pub(crate) connection: Connection,
    pub(crate) retry_policy: RetryPolicy,
    clock: ServerClock,
}

/// An operation in the form that the scripts read.
#[derive(Debug)]
pub(crate) struct EncodedOp {
    /// The Redis key.
    pub(crate) stored: Vec<u8>,
    pub(crate) request: Vec<u8>,
    /// The given time in decimal, empty for the server's clock.
    pub(crate) at: String,
    /// How long the caller waits.
    pub(crate) timeout: Option<Duration>,
}

impl Channel {
    pub(crate) fn new(connection: Connection, retry_policy: RetryPolicy) -> Self {
        Self {
            connection,
            retry_policy,
            clock: ServerClock::new(),
        }
    }

    /// Sends one operation, or several with their flags, which all give the same time or none. Returns the script's reply.
    pub(crate) async fn apply(
        &self,
        ops: &mut [EncodedOp],
        flags: &[u8],
    ) -> Result<Value, Failure> {
        let is_given = ops.first().is_some_and(|op| !op.at.is_empty());
        let timeout = ops.iter().filter_map(|op| op.timeout).min();
        // The server's time at the first attempt, or later, and the latest deadline of all so far.
        let mut first = None;
        let mut latest = 0;
        let command = |attempt: Attempt| {
            if let Some(clock) = attempt.clock {
                self.clock.learn(attempt.sent, clock);
            }
            // A given time does not reveal the server's clock.
            let at = |instant| self.clock.at(instant).filter(|_| !is_given);
            let deadline = at(attempt.gives_up);
            ops.iter_mut()
                .for_each(|op| set_deadline(&mut op.request, deadline));
            let first = *first.get_or_insert(at(attempt.sent));
            let since = attempt
                .since_first
                .map_or_else(Vec::new, |since| repetition(since, first, latest));
            latest = latest.max(deadline.unwrap_or(u64::MAX));
            let keys: Vec<&[u8]> = ops.iter().map(|op| &*op.stored).collect();
            let given = ops.first().map_or(&[][..], |op| op.at.as_bytes());
            let requests = ops.iter().map(|op| &*op.request);
            let args: Vec<&[u8]> = requests.chain([given, &*since, flags]).collect();
            APPLY.call(attempt.load, &keys, &args)
        };
        let reply = self
            .retry_policy
            .run(&self.connection, timeout, true, command)
            .await?;
        if let Some(time) = reply::server_time(&reply.value).filter(|_| !is_given) {
            self.clock.learn(reply.sent, time);
        }
        Ok(reply.value)
    }
}
