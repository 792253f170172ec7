//! A connection to a simulated server without a network.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};

use crate::redis::Redis;

/// Executes each command immediately, by the system's clock. Clones share the server.
#[derive(Clone, Debug, Default)]
pub struct Direct(Arc<Mutex<Redis>>);

impl Direct {
    /// Executes a command.
    ///
    /// # Errors
    /// The server's error reply.
    pub fn execute(&self, command: &Cmd) -> Result<Value, RedisError> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut server = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        server.execute(now.as_micros() as u64, command)
    }
}

impl ConnectionLike for Direct {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { self.execute(command) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        all: &'a Pipeline,
        from: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let commands = all.cmd_iter().skip(from).take(count);
        Box::pin(async move { commands.map(|command| self.execute(command)).collect() })
    }

    fn get_db(&self) -> i64 {
        0
    }
}
