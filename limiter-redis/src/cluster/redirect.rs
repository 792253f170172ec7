//! Redirections: a node's reply that another node serves the slot.

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use crate::settings::Address;

/// A command for a slot that moves reaches its node after one redirection, or two.
pub(crate) const MAX_REDIRECTIONS: usize = 3;

/// Returns where a redirection points, and whether the command must follow an `ASKING` there. With
/// `cluster-preferred-endpoint-type unknown-endpoint` it names a port alone, on the host that was `asked`.
pub(crate) fn redirection(error: &RedisError, asked: &str) -> Option<(Address, bool)> {
    let ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some(((host.to_owned(), port.parse().ok()?), ask))
}

/// Returns the message for a node that imports the command's slot.
pub(crate) fn asking(cmd: &Cmd) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").add_command(cmd.clone());
    pipeline
}

/// Returns the reply to the last of several commands.
pub(crate) fn last_reply(mut replies: Vec<Value>) -> RedisResult<Value> {
    replies.pop().unwrap_or(Value::Nil).extract_error()
}
