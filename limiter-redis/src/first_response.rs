//! Asks several servers which of them to use: sentinels for the master, and the nodes of a Cluster for its slots.

use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Asks all servers concurrently, and returns the first reply within this time. Otherwise returns an error, preferably from a server that
/// replied.
pub(crate) async fn first_response<T: Send + 'static>(
    limit: Duration,
    servers: impl Iterator<Item: Future<Output = RedisResult<T>> + Send + 'static>,
) -> RedisResult<T> {
    let mut asked: JoinSet<_> = servers.map(|response| timeout(limit, response)).collect();
    let mut failure = no_server();
    let mut is_final = false;
    while let Some(response) = asked.join_next().await {
        match response {
            Ok(Ok(Ok(response))) => return Ok(response),
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
