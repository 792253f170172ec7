//! Hash slots: which one a command is for, and which node serves it.

use redis::cluster_routing::Slot;
use redis::{Cmd, Value};

use crate::settings::Address;

/// Returns the slot of a command's key, which is its first argument, or the third of a script.
pub(super) fn slot_of(cmd: &Cmd) -> Option<Slot> {
    let mut args = cmd.args_iter().filter_map(|arg| match arg {
        redis::Arg::Simple(bytes) => Some(bytes),
        _ => None,
    });
    let name = args.next()?;
    let script = [&b"EVAL"[..], b"EVALSHA"]
        .iter()
        .any(|script| name.eq_ignore_ascii_case(script));
    args.nth(if script { 2 } else { 0 }).map(Slot::for_key)
}

/// Returns the ranges of slots in a reply to `CLUSTER SLOTS`, with the masters' addresses. A node that does not know its own
/// host gets `asked`, the host that responded.
pub(super) fn slot_ranges(reply: &Value, asked: &str) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let range = |range: &Value| {
        let Value::Array(range) = range else {
            return None;
        };
        let [first, last, Value::Array(master), ..] = &range[..] else {
            return None;
        };
        let host = match master.first()? {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => {
                String::from_utf8(host.clone()).ok()?
            }
            Value::BulkString(_) | Value::Nil => asked.to_owned(),
            _ => return None,
        };
        Some((
            number(first)?,
            number(last)?,
            (host, number(master.get(1)?)?),
        ))
    };
    ranges.iter().map(range).collect()
}
