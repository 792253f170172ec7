//! What commands and replies say, in Redis's bytes or as facts.

use limiter_core::store::{At, Change, EntryId, Facts, Op, Outcome};
use limiter_core::{Limit, Policy, Window};
use limiter_redis::format::{
    ADMITTED, APPENDED, APPLIED, CALLER_HEAD_LEN, CALLER_ID, DEADLINE_PLACE, LIMIT_LEN,
    OP_HEAD_LEN, OWN_HEAD_LEN, RECORD, REPEATED,
};

use super::Asked;

/// What the server received and replied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// The caller's id, or the store's id of the attempt, which a retry repeats.
    pub(crate) id: EntryId,
    pub(super) has_callers_id: bool,
    /// It may include a block.
    pub(crate) cost: u64,
    pub(crate) flags: u8,
}

fn number(bytes: &[u8]) -> u64 {
    let digit = |number, byte: &u8| number << 8 | u64::from(*byte);
    bytes.iter().fold(0, digit)
}

fn id(bytes: &[u8]) -> EntryId {
    let digit = |number, byte: &u8| number << 8 | u128::from(*byte);
    bytes.iter().fold(0, digit).into()
}

/// Returns the deadline of an operation.
pub(crate) fn deadline(request: &[u8]) -> u64 {
    number(&request[DEADLINE_PLACE - 1..][..7])
}

impl Wire {
    pub(crate) fn new(request: &[u8], reply: &[u8]) -> Self {
        let has_callers_id = request[1] >= CALLER_ID;
        let id = match has_callers_id {
            true => id(&request[OP_HEAD_LEN..CALLER_HEAD_LEN]),
            // The ttl code is the first part of it.
            false => id(&request[OP_HEAD_LEN - 2..OWN_HEAD_LEN]),
        };
        Self {
            id,
            has_callers_id,
            cost: number(&request[OP_HEAD_LEN - 9..OP_HEAD_LEN - 2]),
            flags: reply.last().copied().unwrap_or(0),
        }
    }

    /// Returns what a reply with these facts says. Without a caller's id, the entry's is the store's.
    pub(crate) fn of(callers_id: Option<EntryId>, cost: u64, facts: &Facts) -> Self {
        let (id, flags) = match facts.outcome {
            Outcome::Appended(entry) => (entry.id, APPENDED),
            Outcome::Repeated { entry, .. } => (entry.id, REPEATED),
            _ => (0.into(), 0),
        };
        Self {
            id: callers_id.unwrap_or(id),
            has_callers_id: callers_id.is_some(),
            cost,
            flags: flags | if facts.admitted { ADMITTED } else { 0 },
        }
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn is_appended(&self) -> bool {
        self.has(APPENDED)
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.has(ADMITTED)
    }
}

/// Returns whether a settlement took effect, and the id that a renewed entry has, by the server's reply.
pub(crate) fn settled(change: Change, reply: &[u8]) -> (bool, Option<EntryId>) {
    let is_applied = reply.last().is_some_and(|flags| flags & APPLIED != 0);
    let is_renewed = is_applied && matches!(change, Change::Renew { .. });
    // Before the cost, three times and the flags.
    let renewed = || {
        reply
            .len()
            .checked_sub(4 * 7 + 1)
            .map(|end| id(&reply[end - 16..end]))
    };
    (is_applied, is_renewed.then(renewed).flatten())
}

/// Returns the record of a sweep, whose policy is one exact limit. `None` for the peek that reads the clock.
pub(crate) fn swept(log: usize, request: &[u8], cost: u64, at: At) -> Option<Asked> {
    if request[2] != RECORD {
        return None;
    }
    let [window, max] =
        [0, 7].map(|place| number(&request[CALLER_HEAD_LEN + place..][..LIMIT_LEN / 2]));
    let limit = Limit::with_window(max, Window::from_micros(window).ok()?).ok()?;
    let policy = Policy::from(limit);
    let mut op = Op::record("", &policy).with_cost(cost);
    op.at = at;
    Some(Asked::of(log, &op.into()))
}
