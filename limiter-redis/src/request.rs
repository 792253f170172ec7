//! Operations and settlements as bytes, in the form that the scripts read.

use std::time::Duration;

use limiter_core::store::{At, EntryId, Merging, Mode, Op, Settlement};
use limiter_core::{Counting, Limit, Policy, Receipt};

use crate::format::{
    ACQUIRE, ATTEMPT, CALLER_ID, DEADLINE_PLACE, LIMIT_LEN, OP_HEAD_LEN, PEEK, RECORD,
    RENEW_HEAD_LEN, RESOLUTION, SETTLE_HEAD_LEN, TIME_END,
};

/// Returns an operation without a deadline as `lua/README.md` describes it. `id` is the ttl code (2 bytes), and a caller's
/// 16 bytes or the store's 4.
pub(crate) fn apply(op: &Op<'_>, id: &[u8]) -> Vec<u8> {
    let kind = match (op.mode, op.policy.counting()) {
        (Mode::Acquire, Counting::Admitted) => ACQUIRE,
        (Mode::Acquire, Counting::Attempts) => ATTEMPT,
        (Mode::Record, _) => RECORD,
        (Mode::Peek, _) => PEEK,
    };
    let default = default_limits(op);
    let own = op.policy.limits();
    let merging = op.merging().filter(|_| depends_on_limiter(op));
    let pairs = default.len() + own.len() + usize::from(merging.is_some());
    let mut request = Vec::with_capacity(OP_HEAD_LEN - 2 + id.len() + LIMIT_LEN * pairs);
    let form = |is_set, form| if is_set { form } else { 0 };
    request.push(default.len() as u8);
    request.push(form(merging.is_some(), RESOLUTION) + form(op.id.is_some(), CALLER_ID));
    request.push(kind);
    request.extend_from_slice(&u56(TIME_END));
    request.extend_from_slice(&u56(op.cost));
    request.extend_from_slice(id);
    push_limits(&mut request, default);
    push_limits(&mut request, own);
    push_merging(&mut request, merging);
    request
}

/// Sets or removes an operation's deadline.
pub(crate) fn set_deadline(request: &mut [u8], deadline: Option<u64>) {
    request[DEADLINE_PLACE - 1..][..7]
        .copy_from_slice(&u56(deadline.unwrap_or(TIME_END).min(TIME_END)));
}

/// Returns what a repetition knows of earlier attempts: see `lua/README.md`.
pub(crate) fn repetition(elapsed: Duration, first: Option<u64>, deadline: u64) -> Vec<u8> {
    let elapsed = u64::try_from(elapsed.as_micros()).unwrap_or(TIME_END);
    let numbers = [elapsed, first.unwrap_or(0), deadline];
    let bytes = numbers.map(|number| u56(number.min(TIME_END)));
    bytes.concat()
}

/// Returns the limits of the limiter's default policy, on which retention and receipts depend. None if they are the operation's own,
/// or if nothing depends on them.
fn default_limits<'a>(op: &Op<'a>) -> &'a [Limit] {
    let default = op
        .limiter_policy
        .filter(|default| depends_on_limiter(op) && default.limits() != op.policy.limits());
    default.map_or(&[], Policy::limits)
}

/// Returns `true` if the operation may append, or has an id, whose validity depends on the limiter's policy.
fn depends_on_limiter(op: &Op<'_>) -> bool {
    op.mode != Mode::Peek || op.id.is_some()
}

/// Returns a settlement to a cost, as `lua/README.md` describes it.
pub(crate) fn settle(settlement: &Settlement<'_>, cost: u64) -> Vec<u8> {
    let limits = settlement.policy.limits();
    let mut request = Vec::with_capacity(SETTLE_HEAD_LEN + LIMIT_LEN * limits.len());
    push_receipt(&mut request, settlement.receipt);
    request.extend_from_slice(&u56(cost));
    push_limits(&mut request, limits);
    request
}

/// Returns a renewal as `lua/README.md` describes it. `id` is the caller's id of the entry, if there is one.
pub(crate) fn renew(settlement: &Settlement<'_>, id: Option<EntryId>, ttl: u16) -> Vec<u8> {
    let op = settlement.to_record(1);
    let receipt = settlement.receipt;
    let default = default_limits(&op);
    let own = op.policy.limits();
    let merging = op.merging();
    let mut request = Vec::with_capacity(RENEW_HEAD_LEN + LIMIT_LEN * (own.len() + 2));
    push_receipt(&mut request, receipt);
    let may_have_moved = id.is_some_and(|id| id == receipt.entry());
    let form = |is_set, form| if is_set { form } else { 0 };
    request.push(default.len() as u8);
    request.push(form(merging.is_some(), RESOLUTION) + form(may_have_moved, CALLER_ID));
    request.extend_from_slice(&ttl.to_be_bytes());
    push_limits(&mut request, default);
    push_limits(&mut request, own);
    push_merging(&mut request, merging);
    request
}

fn push_receipt(request: &mut Vec<u8>, receipt: Receipt) {
    request.extend_from_slice(&receipt.entry().as_u128().to_be_bytes());
    for number in [receipt.at().as_micros(), receipt.window().as_micros()] {
        request.extend_from_slice(&u56(number));
    }
}

fn push_merging(request: &mut Vec<u8>, merging: Option<Merging>) {
    if let Some(merging) = merging {
        let exact = merging.exact.map_or(0, limiter_core::Window::as_micros);
        request.extend([merging.resolution, exact].into_iter().flat_map(u56));
    }
}

/// Returns the time that the operation carries in decimal, and nothing for the server's clock.
pub(crate) fn given_time(at: At) -> String {
    match at {
        At::StoreClock => String::new(),
        At::Given(at) => at.as_micros().to_string(),
    }
}

fn push_limits(request: &mut Vec<u8>, limits: &[Limit]) {
    for limit in limits {
        request.extend_from_slice(&u56(limit.window().as_micros()));
        request.extend_from_slice(&u56(limit.max()));
    }
}

/// Returns a number below 2^56 in seven bytes, big-endian.
fn u56(number: u64) -> [u8; 7] {
    let [_, bytes @ ..] = number.to_be_bytes();
    bytes
}

#[cfg(test)]
mod tests {
    use limiter_core::{Policy, policy};

    use super::*;

    fn numbers(bytes: &[u8]) -> Vec<u64> {
        let digit = |number, byte: &u8| number << 8 | u64::from(*byte);
        let number = |bytes: &[u8]| bytes.iter().fold(0, digit);
        assert!(bytes.len().is_multiple_of(7));
        bytes.chunks(7).map(number).collect()
    }

    /// Those of a default policy that is like the operation's own, or of a peek, would only take more commands.
    #[test]
    fn an_append_sends_the_limits_of_another_default_policy() {
        let own = policy!("3/1us, 9/60us");
        for (default, limits, merges) in [
            ("3/1us, 9/60us", &[][..], &[][..]),
            ("9/60us", &[60, 9], &[]),
            ("3/1us, 100/99us", &[1, 3, 99, 100], &[]),
            // An exact limit sees every entry.
            ("5/40us~10us", &[40, 5], &[]),
            ("5/80us~10us, 6/90us~10us", &[80, 5, 90, 6], &[10, 60]),
        ] {
            let default: Policy = default.parse().unwrap();
            let op = Op::acquire("k", &own).with_limiter_policy(&default);
            let request = apply(&op, b"ttl id");
            let head = [limits.len() as u8 / 2, u8::from(!merges.is_empty()), 1];
            assert_eq!(request[..3], head, "{default}");
            let expected = [limits, &[1, 3, 60, 9], merges].concat();
            assert_eq!(numbers(&request[23..]), expected, "{default}");
            let peek = apply(
                &Op::peek("k", &own).with_limiter_policy(&default),
                b"ttl id",
            );
            assert_eq!(
                (&peek[..3], numbers(&peek[23..])),
                (&[0, 0, 4][..], vec![1, 3, 60, 9])
            );
        }
    }
}
