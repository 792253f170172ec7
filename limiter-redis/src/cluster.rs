//! Redis Cluster: connecting, and following redirections.
//!
//! The cluster client is told to repeat nothing: its repetition of a command that may have been executed would count
//! twice. It still learns from every redirection where the slots are.

use redis::aio::ConnectionLike;
use redis::cluster::{ClusterClient, ClusterClientBuilder, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value};

use crate::connection::{Connection, Times, tcp_settings};

/// A slot that moves is answered for by the next node, or the one after.
const REDIRECTIONS: usize = 3;

fn client(nodes: Vec<String>, times: Times) -> RedisResult<ClusterClient> {
    ClusterClientBuilder::new(nodes)
        .retries(0)
        .connection_timeout(times.connect)
        .response_timeout(times.response)
        .overall_response_timeout(None)
        .tcp_settings(tcp_settings(times))
        .build()
}

pub(crate) async fn connect(nodes: Vec<String>, times: Times) -> RedisResult<Connection> {
    client(nodes, times)?.get_async_connection().await.map(Connection::from)
}

pub(crate) fn connect_lazily(nodes: Vec<String>, times: Times) -> RedisResult<Connection> {
    let config = ClusterConfig::new().set_connection_timeout(times.connect).set_response_timeout(times.response);
    Ok(client(nodes, times)?.get_pending_async_connection_with_config(config).into())
}

/// Sends a command to the node that has its slot.
pub(crate) async fn send(cluster: &mut ClusterConnection, cmd: &Cmd) -> RedisResult<Value> {
    let mut answer = cluster.req_packed_command(cmd).await.and_then(Value::extract_error);
    for _ in 0..REDIRECTIONS {
        let Err(error) = &answer else { break };
        let Some((route, asking)) = redirection(error) else { break };
        answer = if asking { ask(cluster, cmd, route).await } else { send_to(cluster, cmd.clone(), route).await };
    }
    answer
}

/// Sends a command to one node.
pub(crate) async fn send_to(
    cluster: &mut ClusterConnection,
    cmd: Cmd,
    route: SingleNodeRoutingInfo,
) -> RedisResult<Value> {
    cluster.route_command(cmd, RoutingInfo::SingleNode(route)).await?.extract_error()
}

async fn ask(cluster: &mut ClusterConnection, cmd: &Cmd, route: SingleNodeRoutingInfo) -> RedisResult<Value> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").ignore().add_command(cmd.clone());
    let mut answers = cluster.route_pipeline(pipeline, 0, 2, route).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

/// Where an answer points to, and whether it has to be asked there as an exception.
fn redirection(error: &RedisError) -> Option<(SingleNodeRoutingInfo, bool)> {
    let asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some((SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? }, asking))
}

/// One node of a cluster as a connection; any node if none is named.
#[derive(Clone)]
pub(crate) struct Node {
    cluster: ClusterConnection,
    route: SingleNodeRoutingInfo,
}

impl Node {
    pub(crate) fn new(cluster: ClusterConnection, address: Option<&(String, u16)>) -> Self {
        let route = match address {
            Some((host, port)) => SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port },
            None => SingleNodeRoutingInfo::Random,
        };
        Self { cluster, route }
    }
}

impl ConnectionLike for Node {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(send_to(&mut self.cluster, cmd.clone(), self.route.clone()))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(self.cluster.route_pipeline(pipeline.clone(), offset, count, self.route.clone()))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// The masters in an answer to `CLUSTER SLOTS`.
pub(crate) fn masters(reply: &Value) -> Option<Vec<(String, u16)>> {
    let Value::Array(ranges) = reply else { return None };
    let mut masters = std::collections::BTreeSet::new();
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let Some(Value::Array(node)) = range.get(2) else { return None };
        let (Some(Value::BulkString(host)), Some(Value::Int(port))) = (node.first(), node.get(1)) else { return None };
        masters.insert((String::from_utf8(host.clone()).ok()?, u16::try_from(*port).ok()?));
    }
    Some(masters.into_iter().collect())
}
