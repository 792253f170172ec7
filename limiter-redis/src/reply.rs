//! A script's answer as facts.

use limiter_core::{Entry, EntryId, Error, ErrorKind, Facts, Op, Outcome, PerLimit, Timestamp, Usage};
use redis::Value;

/// The facts that `apply.lua` answered with, or `None` if they are not of the expected form.
fn parse(op: &Op<'_>, id: EntryId, reply: &Value) -> Option<Facts> {
    let Value::Array(items) = reply else { return None };
    let number = |i: usize| match items.get(i) {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    };
    let time = |i: usize| number(i).and_then(|micros| Timestamp::from_micros(u64::try_from(micros).ok()?).ok());
    let (code, now) = (number(0)?, time(1)?);
    let limits = op.policy.limits();
    if items.len() != 4 + 3 * limits.len() {
        return None;
    }
    let usage = |i: usize| {
        let used = u64::try_from(number(i)?).ok()?;
        Some(Usage { used, oldest: time(i + 1)?, blocker: time(i + 2)? })
    };
    let usages: Option<Vec<Usage>> = (0..limits.len()).map(|i| usage(4 + 3 * i)).collect();
    let usage = PerLimit::from_slice(&usages?)?;
    let entry = Entry { id, at: time(3)? };
    let outcome = match code {
        0 | 1 => Outcome::Nothing,
        2 | 3 => Outcome::Appended(entry),
        4 | 5 => Outcome::Repeated(entry),
        _ => return None,
    };
    let newest = if number(2)? < 0 { None } else { Some(time(2)?) };
    Some(Facts { now, admitted: code % 2 == 1, outcome, newest, usage })
}

pub(crate) fn facts(op: &Op<'_>, id: EntryId, reply: &Value) -> Result<Facts, Error> {
    parse(op, id, reply).ok_or_else(|| unexpected(reply))
}

/// The number that `settle.lua` and the like answered with.
pub(crate) fn integer(reply: &Value) -> Result<i64, Error> {
    match reply {
        Value::Int(number) => Ok(*number),
        reply => Err(unexpected(reply)),
    }
}

#[cold]
pub(crate) fn unexpected(reply: &Value) -> Error {
    let text = format!("Redis answered in an unexpected form: {reply:?}");
    Error::new(ErrorKind::Inconsistent, text.chars().take(400).collect::<String>())
}
