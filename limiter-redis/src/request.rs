//! Operations and settlements as bytes, in the form that the scripts read.

use limiter_core::store::{At, Mode, Op, Settlement};
use limiter_core::{Counting, Limit, Policy};

use crate::format::{
    ACQUIRE, ATTEMPT, KINDS, LIMIT_LEN, OP_HEAD_LEN, PEEK, RECORD, SETTLE_HEAD_LEN, TIME_END,
};

/// Returns an operation without a deadline as `apply_fast.lua` reads it. `id` is a caller's 16 bytes or the store's 6.
pub(crate) fn apply(op: &Op<'_>, id: &[u8]) -> Vec<u8> {
    let kind = match (op.mode, op.policy.counting()) {
        (Mode::Acquire, Counting::Admitted) => ACQUIRE,
        (Mode::Acquire, Counting::Attempts) => ATTEMPT,
        (Mode::Record, _) => RECORD,
        (Mode::Peek, _) => PEEK,
    };
    let (default, own) = (default_limits(op), op.policy.limits());
    let mut request =
        Vec::with_capacity(OP_HEAD_LEN + id.len() + LIMIT_LEN * (default.len() + own.len()));
    request.push(kind + KINDS * default.len() as u8);
    request.extend_from_slice(&u56(TIME_END));
    request.extend_from_slice(&u56(op.cost));
    request.extend_from_slice(id);
    push_limits(&mut request, default);
    push_limits(&mut request, own);
    request
}

/// Sets or removes an operation's deadline.
pub(crate) fn set_deadline(request: &mut [u8], deadline: Option<u64>) {
    request[1..8].copy_from_slice(&u56(deadline.unwrap_or(TIME_END).min(TIME_END)));
}

/// Returns the limits of the limiter's default policy, on which retention and receipts depend. None if they are the operation's own,
/// or if it appends nothing.
fn default_limits<'a>(op: &Op<'a>) -> &'a [Limit] {
    let default = op
        .limiter_policy
        .filter(|default| op.mode != Mode::Peek && default.limits() != op.policy.limits());
    default.map_or(&[], Policy::limits)
}

/// Returns the windows and resolutions by which an append merges entries, as `merge.lua` reads them. Empty if it merges none.
///
/// They are 1 if the entry is named and otherwise 0 (1 byte); then 7 bytes each: the resolution of the new entry, the shortest window,
/// and the first age from which on other entries may merge, [`TIME_END`] if there is none. Then, from the longest on, each boundary
/// from which on entries may merge: its age, the next window, and the resolution between (7 bytes each).
pub(crate) fn windows(op: &Op<'_>) -> Vec<u8> {
    let Some(merging) = op.merging().filter(|_| op.mode != Mode::Peek) else {
        return Vec::new();
    };
    let (windows, boundaries) = (merging.windows(), merging.boundaries());
    let mut bytes = vec![u8::from(op.is_named())];
    bytes.extend_from_slice(&u56(merging.resolution_at(0, false)));
    bytes.extend_from_slice(&u56(windows
        .first()
        .map_or(0, |(window, _)| window.as_micros())));
    let segments = boundaries.iter().filter_map(|boundary| {
        let (next, _) = windows.iter().find(|(window, _)| window > boundary)?;
        let segment = [boundary, next].map(|window| window.as_micros());
        Some((segment, merging.resolution_at(segment[0], false)))
    });
    let segments: Vec<_> = segments.filter(|(_, resolution)| *resolution > 0).collect();
    bytes.extend_from_slice(&u56(segments
        .first()
        .map_or(TIME_END, |([boundary, _], _)| *boundary)));
    for ([boundary, next], resolution) in segments.into_iter().rev() {
        bytes.extend([boundary, next, resolution].into_iter().flat_map(u56));
    }
    bytes
}

/// Returns a settlement as `settle.lua` reads it.
pub(crate) fn settle(settlement: &Settlement<'_>) -> Vec<u8> {
    let Settlement {
        policy,
        receipt,
        cost,
        ..
    } = *settlement;
    let mut request = Vec::with_capacity(SETTLE_HEAD_LEN + LIMIT_LEN * policy.limits().len());
    request.extend_from_slice(&receipt.entry().as_u128().to_be_bytes());
    for number in [receipt.at().as_micros(), receipt.window().as_micros(), cost] {
        request.extend_from_slice(&u56(number));
    }
    push_limits(&mut request, policy.limits());
    request
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
    use limiter_core::policy;

    use super::*;

    fn numbers(bytes: &[u8]) -> Vec<u64> {
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        assert!(bytes.len().is_multiple_of(7));
        bytes.chunks(7).map(number).collect()
    }

    #[test]
    fn an_operation_sends_the_limits_of_another_default_policy() {
        let (own, attempts) = (
            policy!("3/1us, 9/60us"),
            policy!("3/1us, 9/60us").with_counting(Counting::Attempts),
        );
        let [acquire, attempt, record, peek] = [
            Op::acquire("k", &own),
            Op::acquire("k", &attempts),
            Op::record("k", &own),
            Op::peek("k", &own),
        ];
        for (op, kind) in [(acquire, 1), (attempt, 2), (record, 3), (peek, 4)] {
            for (default, limits) in [
                (None, &[][..]),
                (Some("3/1us, 9/60us"), &[]),
                (Some("9/60us"), &[60, 9]),
                (Some("3/1us, 100/99us"), &[1, 3, 99, 100]),
            ] {
                // Nothing is appended by a peek.
                let limits = if kind == 4 { &[] } else { limits };
                let kind = kind + 4 * limits.len() as u8;
                let default = default.map(|text| text.parse().unwrap());
                let mut op = op.with_cost(2);
                op.limiter_policy = default.as_ref();
                let request = apply(&op, b"ttl id");
                assert_eq!(
                    (request[0], &request[15..21], request.capacity()),
                    (kind, &b"ttl id"[..], request.len())
                );
                assert_eq!(numbers(&request[1..15]), [1 << 53, 2]);
                assert_eq!(
                    numbers(&request[21..]),
                    [limits, &[1, 3, 60, 9]].concat(),
                    "{default:?}"
                );
            }
        }
        let request = apply(&acquire, &[7; 16]);
        assert_eq!(
            (request.len(), &request[15..31]),
            (15 + 16 + 28, &[7; 16][..])
        );
    }
}
