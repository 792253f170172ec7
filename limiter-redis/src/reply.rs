//! A script's answer as facts.

use limiter_core::{Entry, EntryId, Error, ErrorKind, Facts, MAX_LIMITS, Op, Outcome, PerLimit, Timestamp, Usage};
use redis::Value;

/// Reads numbers of seven bytes.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn number(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk::<7>()?;
        self.0 = rest;
        let [a, b, c, d, e, f, g] = *bytes;
        Some(u64::from_be_bytes([0, a, b, c, d, e, f, g]))
    }

    fn time(&mut self) -> Option<Timestamp> {
        Timestamp::from_micros(self.number()?).ok()
    }
}

/// The facts that `apply.lua` answered with, or `None` if they are not of the expected form.
fn parse(op: &Op<'_>, id: EntryId, reply: &Value) -> Option<Facts> {
    let Value::BulkString(bytes) = reply else { return None };
    let (&code, rest) = bytes.split_first()?;
    let mut rest = Numbers(rest);
    let (now, newest) = (rest.time()?, rest.time()?);
    let (short, appended) = (code & 32 != 0, code & 2 != 0);
    let entry = Entry { id, at: if short { now } else { rest.time()? } };
    let outcome = match code & 6 {
        0 => Outcome::Nothing,
        2 => Outcome::Appended(entry),
        4 => Outcome::Repeated(entry),
        _ => return None,
    };
    let mut usage = [Usage::default(); MAX_LIMITS];
    let usage = usage.get_mut(..op.policy.limits().len())?;
    for usage in usage.iter_mut() {
        let (used, oldest) = (rest.number()?, rest.time()?);
        *usage = if short {
            Usage { used: if appended { used + op.cost } else { used }, oldest, blocker: oldest }
        } else {
            Usage { used, oldest, blocker: rest.time()? }
        };
    }
    if short {
        usage.rotate_left(1);
    }
    let newest = if appended { Some(now) } else { (code & 16 == 0).then_some(newest) };
    let facts = Facts { now, admitted: code & 1 == 1, outcome, newest, usage: PerLimit::from_slice(usage)? };
    rest.0.is_empty().then_some(facts)
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
