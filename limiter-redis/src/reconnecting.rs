//! A connection to one server, which is opened again whatever ended it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use redis::{Client, Cmd, ErrorKind, RedisError, RedisResult, Value};

use crate::settings::Timeouts;

/// The least time between two connections to a server that refuses them.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Clones share the connection.
///
/// The client library's manager opens a lost connection again. If the server refuses the new one, because a password was changed, for
/// example, the manager returns that error forever, even to a command that comes a minute later. It is then replaced.
#[derive(Clone)]
pub(crate) struct Reconnecting(Arc<Inner>);

struct Inner {
    client: Client,
    timeouts: Timeouts,
    /// The manager, and when it was made.
    manager: RwLock<(ConnectionManager, Instant)>,
}

impl Reconnecting {
    /// Returns a connection that is opened when it is first needed. Call this within a runtime.
    pub(crate) fn lazy(client: Client, timeouts: Timeouts) -> RedisResult<Self> {
        let manager =
            ConnectionManager::new_lazy_with_config(client.clone(), timeouts.manager_config())?;
        Ok(Self(Arc::new(Inner {
            client,
            timeouts,
            manager: RwLock::new((manager, Instant::now())),
        })))
    }

    /// Connects now.
    pub(crate) async fn connect(&self) -> RedisResult<()> {
        let manager = ConnectionManager::new_with_config(
            self.0.client.clone(),
            self.0.timeouts.manager_config(),
        )
        .await?;
        *self
            .0
            .manager
            .write()
            .unwrap_or_else(PoisonError::into_inner) = (manager, Instant::now());
        Ok(())
    }

    /// Sends a command.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.call(|mut manager| async move { manager.send_packed_command(cmd).await })
            .await?
            .extract_error()
    }

    /// Sends commands; errors are among the replies.
    #[cfg(feature = "cluster")]
    pub(crate) async fn send_all(&self, commands: &redis::Pipeline) -> RedisResult<Vec<Value>> {
        self.call(|mut manager| async move {
            manager
                .send_packed_commands(commands, 0, commands.len())
                .await
        })
        .await
    }

    async fn call<T, F>(&self, call: impl Fn(ConnectionManager) -> F) -> RedisResult<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let (manager, made) = self
            .0
            .manager
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let reply = call(manager).await;
        match self.after(reply.as_ref().err(), made)? {
            Some(manager) => call(manager).await,
            None => reply,
        }
    }

    /// Replaces the manager `made` then if it keeps this error. Returns the new one if the command was not sent: the error may be old.
    fn after(
        &self,
        error: Option<&RedisError>,
        made: Instant,
    ) -> RedisResult<Option<ConnectionManager>> {
        // A command that the server refuses has a reply.
        let Some(error) =
            error.filter(|error| !error.is_io_error() && made.elapsed() > REFUSED_PAUSE)
        else {
            return Ok(None);
        };
        let mut current = self
            .0
            .manager
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if current.1 == made {
            let config = self.0.timeouts.manager_config();
            *current = (
                ConnectionManager::new_lazy_with_config(self.0.client.clone(), config)?,
                Instant::now(),
            );
        }
        let is_refusal = matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed | ErrorKind::Server(_)
        );
        Ok(is_refusal.then(|| current.0.clone()))
    }
}
