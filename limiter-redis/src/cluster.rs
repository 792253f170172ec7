//! Redis Cluster: connecting, and following redirections.

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{
    Cmd, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value,
};

use crate::connection::{Connection, Kind, Timeouts, tcp_settings};
use crate::nodes::{Address, Nodes};

/// A command for a slot that moves reaches its node after one redirection, or two.
pub(crate) const REDIRECTIONS: usize = 3;

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) enum Cluster {
    /// Opened by the store.
    Own(Nodes),
    /// Brought by the user.
    Given(ClusterConnection),
}

pub(crate) async fn connect(nodes: Vec<String>, timeouts: Timeouts) -> RedisResult<Connection> {
    let nodes = open(nodes, timeouts)?;
    nodes.refresh_now().await?;
    Ok(Connection(Kind::Cluster(Cluster::Own(nodes))))
}

pub(crate) fn connect_lazily(nodes: Vec<String>, timeouts: Timeouts) -> RedisResult<Connection> {
    Ok(Connection(Kind::Cluster(Cluster::Own(open(nodes, timeouts)?))))
}

fn open(nodes: Vec<String>, timeouts: Timeouts) -> RedisResult<Nodes> {
    let infos = nodes.into_iter().map(|url| Ok(url.into_connection_info()?.set_tcp_settings(tcp_settings(timeouts))));
    Nodes::new(&infos.collect::<RedisResult<Vec<_>>>()?, timeouts)
}

impl Cluster {
    /// Sends a command to the node that serves its slot.
    pub(crate) async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let cluster = match self {
            Self::Own(nodes) => return nodes.send(cmd).await,
            Self::Given(cluster) => cluster,
        };
        let mut answer = cluster.req_packed_command(cmd).await.and_then(Value::extract_error);
        for _ in 0..REDIRECTIONS {
            let Err(error) = &answer else { break };
            let Some((address, ask)) = redirection(error) else { break };
            let mut node = Node { cluster: Self::Given(cluster.clone()), address: Some(address) };
            answer = if ask {
                asking(&mut node, cmd).await
            } else {
                node.req_packed_command(cmd).await.and_then(Value::extract_error)
            };
        }
        answer
    }

    pub(crate) async fn send_all(&mut self, all: &Pipeline, offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        match self {
            Self::Own(nodes) => nodes.send_all(all, offset, count).await,
            Self::Given(cluster) => cluster.req_packed_commands(all, offset, count).await,
        }
    }
}

/// Sends a command to a node that imports its slot.
pub(crate) async fn asking(node: &mut impl ConnectionLike, cmd: &Cmd) -> RedisResult<Value> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").add_command(cmd.clone());
    let mut answers = node.req_packed_commands(&pipeline, 0, 2).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

/// Returns where a redirection points, and whether the command must follow an `ASKING` there.
pub(crate) fn redirection(error: &RedisError) -> Option<(Address, bool)> {
    let ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some(((host.to_owned(), port.parse().ok()?), ask))
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
                Cluster::Own(nodes) => nodes.at_or_any(self.address.as_ref())?.req_packed_command(cmd).await,
                Cluster::Given(cluster) => cluster.route_command(cmd.clone(), route).await,
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
                Cluster::Own(nodes) => {
                    nodes.at_or_any(self.address.as_ref())?.req_packed_commands(all, offset, count).await
                }
                Cluster::Given(cluster) => cluster.route_pipeline(all.clone(), offset, count, route).await,
            }
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Returns the ranges of slots in an answer to `CLUSTER SLOTS`, with the masters' addresses. A node that does not know its own
/// host gets `asked`, the host that answered.
pub(crate) fn slot_ranges(reply: &Value, asked: &str) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(ranges) = reply else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let range = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let [first, last, Value::Array(master), ..] = &range[..] else { return None };
        let host = match master.first()? {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => String::from_utf8(host.clone()).ok()?,
            Value::BulkString(_) | Value::Nil => asked.to_owned(),
            _ => return None,
        };
        Some((number(first)?, number(last)?, (host, number(master.get(1)?)?)))
    };
    ranges.iter().map(range).collect()
}

/// Returns the masters in an answer to `CLUSTER SLOTS`.
pub(crate) fn masters(reply: &Value) -> Option<Vec<Address>> {
    let masters: std::collections::BTreeSet<_> = slot_ranges(reply, "")?.into_iter().map(|(.., node)| node).collect();
    Some(masters.into_iter().collect())
}
