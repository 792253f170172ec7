//! A log as a value: its size, and when a store may forget it.

use limiter_core::store::{At, Log, LogKey, Op, Outcome, Settlement};
use limiter_core::{Policy, Receipt, Timestamp, Window, policy};

const SECOND: u64 = 1_000_000;
const NOW: u64 = 1_700_000_000 * SECOND;

fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Appends one entry while the store's clock reads `clock`, and returns its receipt and when the log expires.
fn append(log: &mut Log, policy: &Policy, given: Option<u64>, clock: u64) -> (Receipt, u64) {
    let mut op = Op::record("", policy);
    op.at = given.map_or(At::StoreClock, |given| At::Given(time(given)));
    let Outcome::Appended(entry) = log.apply(&op, time(clock)).outcome else {
        panic!("a record always appends")
    };
    let receipt = Receipt::new(entry.id, entry.at, Window::MAX);
    (receipt, log.expires_at().unwrap().as_micros())
}

#[test]
fn a_log_expires_when_f1_and_f2_say_and_only_an_append_moves_that() {
    let [policy, short, day] = [policy!("9/10s, 3/1s"), policy!("1/1s"), policy!("9/1d")];
    let window = 10 * SECOND;
    let grace = 60 * SECOND;
    let mut log = Log::new();
    assert_eq!(log.expires_at(), None);
    // F1: newest + window, even when the newest entry is ahead of the clock.
    let (receipt, expires_at) = append(&mut log, &policy, None, NOW);
    assert_eq!(expires_at, NOW + window);
    assert_eq!(
        append(&mut log, &policy, None, NOW - 5 * SECOND).1,
        expires_at
    );
    let later = time(NOW + SECOND / 2);
    let _ = log.apply(&Op::peek("", &short), later);
    let _ = log.apply(&Op::acquire("", &short), later);
    for cost in [5, 0, 0] {
        let settlement = Settlement::new(LogKey::new("".into(), ""), &short, receipt, cost);
        let _ = log.settle(&settlement, later);
    }
    assert_eq!(log.expires_at(), Some(time(expires_at)));
    // F2: now - g + window + 60 s after the append, wherever the given time is.
    let clock = NOW + 7;
    let ends = clock + window + grace;
    assert_eq!(append(&mut log, &policy, Some(NOW + 3), clock).1, ends);
    assert_eq!(append(&mut log, &policy, Some(3), clock).1, ends + NOW);
    assert_eq!(append(&mut Log::new(), &policy, Some(3), clock).1, ends);
    // A limiter's default policy also counts.
    let mut log = Log::new();
    let _ = log.apply(
        &Op::record("", &policy).with_limiter_policy(&day),
        time(clock),
    );
    assert_eq!(log.expires_at(), Some(time(clock + 86_400 * SECOND)));
}

#[test]
fn an_endless_stream_leaves_a_small_log() {
    for (policy, seen) in [
        (policy!("1000000/1h~1m"), 0),
        (policy!("1000000/1h~1m, 100000/10m"), 600_000 / 37 + 1),
    ] {
        let mut log = Log::new();
        for i in 0..200_000 {
            let op = Op::acquire("", &policy).at(Timestamp::from_micros_saturating(i * 37_000));
            log.apply(&op, Timestamp::EPOCH);
            assert!(log.len() <= 62 + seen, "{policy}: {} entries", log.len());
        }
    }
}
