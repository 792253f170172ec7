//! A Cluster connection that the user opened.

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::cluster::redirect::{MAX_REDIRECTIONS, asking, last_reply, redirection};
use crate::connection::Address;

/// The connection, and where its commands go.
#[derive(Clone)]
pub(crate) struct UserCluster {
    cluster: ClusterConnection,
    /// `None` for the node that serves a command's slot.
    route: Option<SingleNodeRoutingInfo>,
}

impl From<ClusterConnection> for UserCluster {
    fn from(cluster: ClusterConnection) -> Self {
        Self { cluster, route: None }
    }
}

impl UserCluster {
    /// Returns the connection to one node, or to any without an address.
    pub(crate) fn node(&self, address: Option<&Address>) -> Self {
        let route = match address.cloned() {
            Some((host, port)) => SingleNodeRoutingInfo::ByAddress { host, port },
            None => SingleNodeRoutingInfo::Random,
        };
        Self { cluster: self.cluster.clone(), route: Some(route) }
    }

    /// Sends a command, and follows redirections.
    pub(crate) async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let mut reply = self.send_once(cmd).await;
        for _ in 0..MAX_REDIRECTIONS {
            let Err(error) = &reply else { break };
            let Some((address, ask)) = redirection(error, "") else { break };
            let mut node = self.node(Some(&address));
            reply =
                if ask { node.send_all(&asking(cmd)).await.and_then(last_reply) } else { node.send_once(cmd).await };
        }
        reply
    }

    async fn send_once(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self.route.clone() {
            Some(route) => self.cluster.route_command(cmd.clone(), RoutingInfo::SingleNode(route)).await,
            None => self.cluster.req_packed_command(cmd).await,
        }?
        .extract_error()
    }

    /// Sends commands to one node.
    pub(crate) async fn send_all(&mut self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let route = self.route.clone().unwrap_or(SingleNodeRoutingInfo::Random);
        self.cluster.route_pipeline(commands.clone(), 0, commands.len(), route).await
    }
}
