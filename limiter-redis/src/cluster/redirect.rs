//! Redirections: a node's reply that another node serves the slot.

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use crate::cluster::slots::Address;

/// A command for a slot that moves reaches its node after one redirection, or two.
pub(crate) const MAX_REDIRECTIONS: usize = 3;

/// Returns where a redirection points, and whether the command must follow an `ASKING` there.
pub(crate) fn redirection(error: &RedisError) -> Option<(Address, bool)> {
    let ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some(((host.to_owned(), port.parse().ok()?), ask))
}

/// Sends a command to a node that imports its slot.
pub(crate) async fn send_asking(node: &mut impl ConnectionLike, cmd: &Cmd) -> RedisResult<Value> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").add_command(cmd.clone());
    let mut replies = node.req_packed_commands(&pipeline, 0, 2).await?;
    replies.pop().unwrap_or(Value::Nil).extract_error()
}
