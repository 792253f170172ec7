//! Redis Cluster: connecting, and following redirections.

pub(crate) mod node_pool;
pub(crate) mod redirect;
pub(crate) mod slots;

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, IntoConnectionInfo, Pipeline, RedisFuture, RedisResult, Value};

use crate::cluster::node_pool::NodePool;
use crate::cluster::redirect::{MAX_REDIRECTIONS, redirection, send_asking};
use crate::cluster::slots::Address;
use crate::settings::Timeouts;

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) enum Cluster {
    /// Connections that the store opened, one for each node.
    Pool(NodePool),
    /// A connection that the user opened.
    UserConnection(ClusterConnection),
}

impl Cluster {
    /// Connects to a cluster by the URLs of some of its nodes.
    pub(crate) async fn connect(nodes: Vec<String>, timeouts: Timeouts) -> RedisResult<Self> {
        let pool = pool(nodes, timeouts)?;
        pool.refresh_now().await?;
        Ok(Self::Pool(pool))
    }

    /// Returns a connection that is made when it is first needed.
    pub(crate) fn connect_lazily(nodes: Vec<String>, timeouts: Timeouts) -> RedisResult<Self> {
        Ok(Self::Pool(pool(nodes, timeouts)?))
    }

    /// Sends a command to the node that serves its slot.
    pub(crate) async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let cluster = match self {
            Self::Pool(pool) => return pool.send(cmd).await,
            Self::UserConnection(cluster) => cluster,
        };
        let mut reply = cluster.req_packed_command(cmd).await.and_then(Value::extract_error);
        for _ in 0..MAX_REDIRECTIONS {
            let Err(error) = &reply else { break };
            let Some((address, ask)) = redirection(error) else { break };
            let mut node = Node { cluster: Self::UserConnection(cluster.clone()), address: Some(address) };
            reply = if ask {
                send_asking(&mut node, cmd).await
            } else {
                node.req_packed_command(cmd).await.and_then(Value::extract_error)
            };
        }
        reply
    }

    /// Sends commands of one slot.
    pub(crate) async fn send_all(&mut self, all: &Pipeline, offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        match self {
            Self::Pool(pool) => pool.send_all(all, offset, count).await,
            Self::UserConnection(cluster) => cluster.req_packed_commands(all, offset, count).await,
        }
    }
}

fn pool(nodes: Vec<String>, timeouts: Timeouts) -> RedisResult<NodePool> {
    let infos = nodes.into_iter().map(|url| Ok(url.into_connection_info()?.set_tcp_settings(timeouts.tcp_settings())));
    NodePool::new(&infos.collect::<RedisResult<Vec<_>>>()?, timeouts)
}

/// One node of a cluster as a connection. Without an address, any node.
#[derive(Clone)]
pub(crate) struct Node {
    cluster: Cluster,
    address: Option<Address>,
}

impl Node {
    pub(crate) fn new(cluster: Cluster, address: Option<&Address>) -> Self {
        Self { cluster, address: address.cloned() }
    }

    fn route(&self) -> SingleNodeRoutingInfo {
        match self.address.clone() {
            Some((host, port)) => SingleNodeRoutingInfo::ByAddress { host, port },
            None => SingleNodeRoutingInfo::Random,
        }
    }
}

impl ConnectionLike for Node {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async {
            let route = RoutingInfo::SingleNode(self.route());
            match &mut self.cluster {
                Cluster::Pool(pool) => pool.at_or_any(self.address.as_ref())?.req_packed_command(cmd).await,
                Cluster::UserConnection(cluster) => cluster.route_command(cmd.clone(), route).await,
            }?
            .extract_error()
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        all: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let route = self.route();
            match &mut self.cluster {
                Cluster::Pool(pool) => {
                    pool.at_or_any(self.address.as_ref())?.req_packed_commands(all, offset, count).await
                }
                Cluster::UserConnection(cluster) => cluster.route_pipeline(all.clone(), offset, count, route).await,
            }
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}
