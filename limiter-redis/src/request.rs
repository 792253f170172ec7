//! Operations and settlements as bytes, in the form that the scripts read.

use limiter_core::store::{At, Mode, Op, Retention, Settlement};
use limiter_core::{Counting, Policy};

use crate::format::{ACQUIRE, ATTEMPT, LIMIT_LEN, OP_HEAD_LEN, PEEK, RECORD, RETENTION, SETTLE_HEAD_LEN, TIME_END};

/// Returns an operation without a deadline as `apply_fast.lua` reads it. `id` is a caller's 16 bytes or the store's 6.
pub(crate) fn apply(op: &Op<'_>, id: &[u8]) -> Vec<u8> {
    let kind = match (op.mode, op.policy.counting()) {
        (Mode::Acquire, Counting::Admitted) => ACQUIRE,
        (Mode::Acquire, Counting::Attempts) => ATTEMPT,
        (Mode::Record, _) => RECORD,
        (Mode::Peek, _) => PEEK,
    };
    let retention = sent_retention(op);
    let pairs = usize::from(retention.is_some()) + op.policy.limits().len();
    let mut request = Vec::with_capacity(OP_HEAD_LEN + id.len() + LIMIT_LEN * pairs);
    request.push(if retention.is_some() { kind + RETENTION } else { kind });
    request.extend_from_slice(&u56(TIME_END));
    request.extend_from_slice(&u56(op.cost));
    request.extend_from_slice(id);
    if let Some(Retention { window, max }) = retention {
        request.extend_from_slice(&u56(window.as_micros()));
        // An entry is kept unless the newer ones reach the maximum.
        request.extend_from_slice(&u56(max - 1));
    }
    push_limits(&mut request, op.policy);
    request
}

/// Sets or removes the deadline of an operation.
pub(crate) fn set_deadline(request: &mut [u8], deadline: Option<u64>) {
    request[1..8].copy_from_slice(&u56(deadline.unwrap_or(TIME_END).min(TIME_END)));
}

/// Returns the retention that is sent along: none if the operation's own limits imply it, or if it appends nothing.
pub(crate) fn sent_retention(op: &Op<'_>) -> Option<Retention> {
    op.limiter_policy?;
    let retention = op.retention();
    (op.mode != Mode::Peek && retention != Retention::of(op.policy)).then_some(retention)
}

/// Returns a settlement as `settle.lua` reads it.
pub(crate) fn settle(settlement: &Settlement<'_>) -> Vec<u8> {
    let Settlement { policy, receipt, cost, .. } = *settlement;
    let mut request = Vec::with_capacity(SETTLE_HEAD_LEN + LIMIT_LEN * policy.limits().len());
    request.extend_from_slice(&receipt.entry().as_u128().to_be_bytes());
    for number in [receipt.at().as_micros(), receipt.window().as_micros(), cost] {
        request.extend_from_slice(&u56(number));
    }
    push_limits(&mut request, policy);
    request
}

/// Returns the time that the operation carries, `None` for the server's clock.
pub(crate) fn given_time(at: At) -> Option<u64> {
    match at {
        At::StoreClock => None,
        At::Given(at) => Some(at.as_micros()),
    }
}

fn push_limits(request: &mut Vec<u8>, policy: &Policy) {
    for limit in policy.limits() {
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
    use limiter_core::{Name, Receipt, Timestamp, Window, policy};

    use super::*;

    fn numbers(bytes: &[u8]) -> Vec<u64> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        assert!(bytes.len().is_multiple_of(7));
        bytes.chunks(7).map(number).collect()
    }

    /// The kind, the cost, and the numbers after an id of six bytes.
    fn fields(op: &Op<'_>) -> (u8, u64, Vec<u64>) {
        let request = apply(op, b"ttl id");
        assert_eq!((&request[15..21], request.capacity()), (&b"ttl id"[..], request.len()));
        assert_eq!(numbers(&request[1..8]), [1 << 53]);
        (request[0], numbers(&request[8..15])[0], numbers(&request[21..]))
    }

    #[test]
    fn an_operation_sends_its_own_limits_alone_if_they_imply_the_retention() {
        const SECOND: u64 = 1_000_000;
        let (own, attempts) = (policy!("3/1s, 9/1m"), policy!("3/1s, 9/1m").with_counting(Counting::Attempts));
        let limits = vec![SECOND, 3, 60 * SECOND, 9];
        for (kind, op) in [
            (1, Op::acquire("k", &own)),
            (2, Op::acquire("k", &attempts)),
            (3, Op::record("k", &own)),
            (4, Op::peek("k", &own)),
        ] {
            let op = op.with_cost(2);
            assert_eq!(fields(&op), (kind, 2, limits.clone()));
            // A limiter's policy that sees no more than the operation's own.
            for seen in [policy!("9/1m"), policy!("1/1s"), own.clone()] {
                assert_eq!(fields(&op.with_limiter_policy(&seen)), (kind, 2, limits.clone()));
            }
        }
    }

    #[test]
    fn an_operation_sends_a_retention_that_its_limits_do_not_imply() {
        let own = policy!("50/1us");
        for (default, window, max) in [("3/1us, 100/9us", 9, 100), ("3/9us", 9, 50), ("100/1us", 1, 100)] {
            let default = default.parse().unwrap();
            for (kind, op) in [(9, Op::acquire("k", &own)), (11, Op::record("k", &own))] {
                let op = op.with_limiter_policy(&default);
                assert_eq!(fields(&op), (kind, 1, vec![window, max - 1, 1, 50]));
            }
            // Nothing is appended, so nothing is dropped.
            assert_eq!(fields(&Op::peek("k", &own).with_limiter_policy(&default)), (4, 1, vec![1, 50]));
        }
    }

    #[test]
    fn a_callers_id_takes_sixteen_bytes() {
        let policy = policy!("3/1us");
        let request = apply(&Op::acquire("k", &policy), &[7; 16]);
        assert_eq!((request.len(), &request[15..31]), (15 + 16 + 14, &[7; 16][..]));
    }

    #[test]
    fn a_deadline_is_set_and_removed() {
        let policy = policy!("3/1us");
        let none = apply(&Op::acquire("k", &policy), b"ttl id");
        let mut request = none.clone();
        set_deadline(&mut request, Some(77));
        assert_eq!((numbers(&request[1..8]), &request[8..]), (vec![77], &none[8..]));
        for none_or_never in [None, Some(u64::MAX)] {
            set_deadline(&mut request, none_or_never);
            assert_eq!(request, none);
        }
    }

    #[test]
    fn a_settlement_sends_the_limits_to_report() {
        let policy = policy!("3/1us, 5/9us");
        let at = Timestamp::from_micros(77).unwrap();
        let receipt = Receipt::new(5_u128.into(), at, Window::from_micros(9).unwrap());
        let log = limiter_core::store::LogKey::new(Name::default(), "k");
        let request = settle(&Settlement::new(log, &policy, receipt, 2));
        assert_eq!(request[..16], 5_u128.to_be_bytes());
        assert_eq!(numbers(&request[16..]), [77, 9, 2, 1, 3, 9, 5]);
        assert_eq!(request.capacity(), request.len());
    }
}
