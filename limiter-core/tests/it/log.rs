//! A log as a value: its size, and when a store may forget it.

use limiter_core::store::{Log, Op};
use limiter_core::{Timestamp, policy};

const SECOND: u64 = 1_000_000;
const NOW: u64 = 1_700_000_000 * SECOND;

fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// F2, whose minute the conformance suite does not wait for.
#[test]
fn a_log_at_given_times_stays_for_a_minute_after_its_window() {
    let policy = policy!("9/10s, 3/1s");
    let mut log = Log::new();
    let clock = NOW + 7;
    // How far the newest entry is ahead of the given time lengthens that.
    for (given, ahead) in [(3, 0), (NOW + 3, 0), (3, NOW)] {
        let op = Op::record("", &policy).at(time(given));
        let _ = log.apply(&op, time(clock));
        let ends = clock + ahead + 70 * SECOND;
        assert_eq!(log.expires_at(), Some(time(ends)), "{given}");
    }
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
