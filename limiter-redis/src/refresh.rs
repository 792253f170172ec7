//! Learns in the background which servers to use, for the masters of sentinels and the nodes of a Cluster.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::failure::is_deposed;
use crate::settings::Runtime;

/// The least time between two refreshes.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

/// Where a connection refreshes.
pub(crate) struct Background {
    pub(crate) runtime: Runtime,
    /// Held during a refresh.
    refreshing: Arc<Mutex<()>>,
}

impl Background {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let refreshing = Arc::default();
        Self {
            runtime,
            refreshing,
        }
    }
}

/// A connection to servers that change.
pub(crate) trait Refresh: Clone + Send + Sync + 'static {
    fn background(&self) -> &Background;

    /// Asks which servers to use.
    fn refresh_now(&self) -> impl Future<Output = RedisResult<()>> + Send;

    /// Refreshes in the background.
    fn refresh(&self) {
        let Ok(refreshing) = Arc::clone(&self.background().refreshing).try_lock_owned() else {
            return;
        };
        let connection = self.clone();
        self.background().runtime.spawn(async move {
            // If no server responds, the next operation tries again.
            let _ = connection.refresh_now().await;
            sleep(REFRESH_PAUSE).await;
            drop(refreshing);
        });
    }
}

/// Returns the reply to a command. Refreshes if the server does not respond, even if the future is dropped: another server may
/// have taken over.
pub(crate) async fn watched(
    connection: &impl Refresh,
    reply: impl Future<Output = RedisResult<Value>>,
) -> RedisResult<Value> {
    let mut refresh = RefreshOnDrop {
        connection,
        armed: true,
    };
    let reply = reply.await;
    refresh.armed = reply.as_ref().is_err_and(|error| {
        let unknown = [
            ErrorKind::ClusterConnectionNotFound,
            ErrorKind::MasterNameNotFoundBySentinel,
        ];
        error.is_io_error() || is_deposed(error) || unknown.contains(&error.kind())
    });
    reply
}

struct RefreshOnDrop<'a, C: Refresh> {
    connection: &'a C,
    armed: bool,
}

impl<C: Refresh> Drop for RefreshOnDrop<'_, C> {
    fn drop(&mut self) {
        if self.armed {
            self.connection.refresh();
        }
    }
}

/// Asks all servers concurrently, and returns the first reply within this time. Otherwise an error, best that of a server that
/// responds.
pub(crate) async fn first_answer<T: Send + 'static>(
    limit: Duration,
    servers: impl Iterator<Item: Future<Output = RedisResult<T>> + Send + 'static>,
) -> RedisResult<T> {
    let mut asked: JoinSet<_> = servers.map(|answer| timeout(limit, answer)).collect();
    let mut failure = no_server();
    let mut is_final = false;
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(Ok(answer))) => return Ok(answer),
            Ok(Ok(Err(error))) if error.is_io_error() && is_final => {}
            Ok(Ok(Err(error))) => {
                is_final = !error.is_io_error();
                failure = error;
            }
            Ok(Err(_)) if !is_final => {
                failure = std::io::Error::from(std::io::ErrorKind::TimedOut).into();
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
    Err(failure)
}

pub(crate) fn no_server() -> RedisError {
    (ErrorKind::ClusterConnectionNotFound, "no node is known").into()
}
