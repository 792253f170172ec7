//! The scripts' replies as facts.

use limiter_core::store::{
    Change, Changed, Entry, EntryId, Facts, LogFacts, Op, Outcome, Settlement, SettlementFacts,
    Usage,
};
use limiter_core::{Error, ErrorKind, MAX_LIMITS, PerLimit, Timestamp};
use redis::{FromRedisValue, Value};

use crate::failure::Failure;
use crate::format::{ADMITTED, APPENDED, APPLIED, EMPTY, FAILED, LATE, REFUNDABLE, REPEATED};

/// Reads numbers of seven bytes.
struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    /// Splits a reply into its code and its numbers.
    fn of(reply: &'a Value) -> Option<(u8, Self)> {
        let Value::BulkString(bytes) = reply else {
            return None;
        };
        let (&code, rest) = bytes.split_last()?;
        (bytes[0] != FAILED).then_some((code, Self(rest)))
    }

    fn number(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk::<7>()?;
        self.0 = rest;
        let [a, b, c, d, e, f, g] = *bytes;
        Some(u64::from_be_bytes([0, a, b, c, d, e, f, g]))
    }

    /// Reads an id of 16 bytes.
    fn id(&mut self) -> Option<EntryId> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(EntryId::from_u128(u128::from_be_bytes(*bytes)))
    }

    fn time(&mut self) -> Option<Timestamp> {
        Timestamp::from_micros(self.number()?).ok()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the server's time if the script did not append because the deadline had passed.
pub(crate) fn late(reply: &Value) -> Option<Timestamp> {
    let (LATE, mut rest) = Numbers::of(reply)? else {
        return None;
    };
    rest.time()
}

/// Returns the number of one of several operations whose log could not be read, counted from 0, and the failure.
pub(crate) fn failure(reply: &Value) -> Option<(usize, Failure)> {
    let Value::BulkString(bytes) = reply else {
        return None;
    };
    let (&[FAILED, a, b, c, d], text) = bytes.split_first_chunk()? else {
        return None;
    };
    let number = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    let line: Vec<u8> = text
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_control())
        .collect();
    let error =
        redis::parse_redis_value(&[b"-", &*line, b"\r\n"].concat()).and_then(Value::extract_error);
    Some((number.checked_sub(1)?, Failure::Redis(error.err()?)))
}

/// Returns the time of the server's clock in the reply to one operation or several by that clock.
pub(crate) fn server_time(reply: &Value) -> Option<Timestamp> {
    if let Value::Array(replies) = reply {
        return replies.iter().find_map(server_time);
    }
    let (_, Numbers(rest)) = Numbers::of(reply)?;
    Numbers(rest.get(rest.len().checked_sub(14)?..)?).time()
}

/// Returns the facts in the reply to an operation. `lua/README.md` describes it.
pub(crate) fn facts(op: &Op<'_>, id: EntryId, reply: &Value) -> Option<Facts> {
    let (code, mut rest) = Numbers::of(reply)?;
    let has = |flag| code & flag != 0;
    let mut usage = [Usage::default(); MAX_LIMITS];
    let usage = usage.get_mut(..op.policy.limits().len())?;
    for usage in usage.iter_mut() {
        *usage = Usage {
            used: rest.number()? + if has(APPENDED) { op.cost } else { 0 },
            oldest: rest.time()?,
            blocker: rest.time()?,
        };
    }
    let repeated = has(REPEATED).then(|| (rest.time(), rest.number()));
    let clock = rest.time()?;
    let before = rest.time()?;
    let now = clock.max(before);
    let outcome = match (has(APPENDED), repeated) {
        (false, None) => Outcome::Nothing,
        (true, None) => Outcome::Appended(Entry { id, at: now }),
        (false, Some((at, cost))) => Outcome::Repeated {
            entry: Entry { id, at: at? },
            cost: cost?,
        },
        (true, Some(_)) => return None,
    };
    let newest = if has(APPENDED) {
        Some(now)
    } else {
        (!has(EMPTY)).then_some(before)
    };
    let log = LogFacts {
        now,
        clock: op.at.waits_from(now, clock),
        newest,
        usage: PerLimit::from_slice(usage)?,
    };
    rest.is_empty().then_some(Facts {
        admitted: has(ADMITTED),
        refundable: has(REFUNDABLE),
        outcome,
        log,
    })
}

/// Returns the facts in the reply to a settlement.
pub(crate) fn settlement(settlement: &Settlement<'_>, reply: &Value) -> Option<SettlementFacts> {
    let (code, mut rest) = Numbers::of(reply)?;
    let mut usage = [Usage::default(); MAX_LIMITS];
    let usage = usage.get_mut(..settlement.policy.limits().len())?;
    for usage in usage.iter_mut() {
        let used = rest.number()?;
        let oldest = rest.time()?;
        *usage = Usage {
            used,
            oldest,
            blocker: oldest,
        };
    }
    let receipt = settlement.receipt;
    let mut entry = Entry {
        id: receipt.entry(),
        at: receipt.at(),
    };
    let is_renewal = matches!(settlement.change, Change::Renew { .. });
    if is_renewal {
        entry.id = rest.id()?;
    }
    let cost_before = rest.number()?;
    let clock = rest.time()?;
    let now = rest.time()?;
    let newest = rest.time()?;
    if is_renewal {
        entry.at = now;
    }
    let changed = Changed { cost_before, entry };
    let log = LogFacts {
        now,
        clock: settlement.at.waits_from(now, clock),
        newest: (code & EMPTY == 0).then_some(newest),
        usage: PerLimit::from_slice(usage)?,
    };
    rest.is_empty().then_some(SettlementFacts {
        changed: (code & APPLIED != 0).then_some(changed),
        log,
    })
}

/// Returns the value that a command replied with.
pub(crate) fn value<T: FromRedisValue>(reply: &Value) -> Result<T, Error> {
    redis::from_redis_value_ref(reply).map_err(|_| unexpected(reply))
}

/// Describes a reply by its form alone: its content may hold keys.
#[cold]
pub(crate) fn unexpected(reply: &Value) -> Error {
    let form = match reply {
        Value::Nil => "nothing".to_owned(),
        Value::Int(_) => "an integer".to_owned(),
        Value::BulkString(bytes) => format!("a string of {} bytes", bytes.len()),
        Value::SimpleString(text) => format!("a status of {} bytes", text.len()),
        Value::Okay => "OK".to_owned(),
        Value::Array(items) => format!("an array of {}", items.len()),
        _ => "something else".to_owned(),
    };
    Error::new(
        ErrorKind::Inconsistent,
        format!("Redis sent an unexpected reply: {form}"),
    )
}
