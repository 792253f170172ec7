//! T1 and T3: timestamps, and time that never runs backwards within a log.

use limiter_core::policy;

use super::script::{Script, script, steps};
use crate::conformance::sentence::Citation;
use crate::conformance::sentence::Sentence::{S2, S4, S8, T1, T3};

const CLAMPED: &[Citation] = &[T3.nth(1)];
const NOT_HELD: &[Citation] = &[T3.nth(2)];

pub(super) fn scripts() -> Vec<Script> {
    [resolution(), clamped(), not_held()].concat()
}

fn resolution() -> Vec<Script> {
    let bits = [16, 24, 31, 32, 33, 40, 48];
    vec![
        steps!(script("each microsecond is a distinct time", &[T1.nth(2)], policy!("1/1us")) =>
            acquire 1, acquire 1)
        .for_each([1, 1, 998, 1, 998_999, 1], |script, after| script.acquire(1).after(after).acquire(1)),
        script("times within one millisecond are distinct", &[T1.nth(2)], policy!("9/100us, 2/1us"))
            .starting_at(1_700_000_000_000_999)
            .for_each([0, 1, 1, 97, 1, 1], |script, after| script.acquire(1).after(after)),
        // An age that overflows a narrower integer would look young.
        script("ages do not wrap around", &[T1.nth(2)], policy!("9/10us"))
            .for_each(bits, |script, bit| script.acquire(1).after(1 << bit).acquire(2).after((1 << bit) + 3)),
        script(
            "windows do not wrap around",
            &[T1.nth(2)],
            policy!("9/4294967301us, 99/65541us, 999/4503599627370501us"),
        )
        .for_each([0, 4, 65_536, 65_540, 1 << 32, 4, 1], |script, after| script.acquire(1).after(after)),
        script("the first and the last timestamp", &[T1.nth(1)], policy!("2/1us"))
            .starting_at(0)
            .acquire(1)
            .acquire(1)
            .after(1)
            .acquire(1)
            .after((1 << 53) - 3)
            .acquire(1)
            .after(1)
            .acquire(2)
            .peek(1),
        // Doubles this large are whole numbers, so half a microsecond would round up.
        script("times beyond 2^52", &[T1.nth(2)], policy!("2/3us"))
            .starting_at((1 << 53) - 12)
            .for_each([0, 1, 1, 1, 2, 1], |script, after| script.acquire(1).after(after)),
    ]
}

fn clamped() -> Vec<Script> {
    let limits = || policy!("3/10us");
    vec![
        steps!(script("an acquire before the newest entry", CLAMPED, limits()) =>
            acquire 1, acquire 1 after -5, acquire 1 after 1, acquire 1 after -1),
        steps!(script("a peek before the newest entry", CLAMPED, limits()) =>
            acquire 3, peek 1 after -1, peek 3 after -1_000_000),
        script("a record before the newest entry", CLAMPED, limits()).record(1).record(1).after(-5).peek(1).after(9),
        steps!(script("a denial before the newest entry", CLAMPED, limits()) =>
            acquire 3, acquire 1 after -9, acquire 1 after 19),
        steps!(script("before an entry that has left every window", CLAMPED, policy!("2/1us")) =>
            acquire 1, peek 1 after 50, acquire 1 after -100, peek 2 after 50),
        steps!(script("before an entry, under a policy that never saw it", CLAMPED, policy!("2/1us"))
            .policy(policy!("9/1ms")) =>
            acquire 1 under 1, peek 1 after -3, acquire 1 after -3),
        steps!(script("a denied attempt clamps later times", CLAMPED, limits()).counting_attempts() =>
            acquire 3, acquire 1 after 5, acquire 1 after -3),
        steps!(script("a repetition before the newest entry", CLAMPED, limits()) =>
            acquire 1 id 1, acquire 1 after 12,
            // At 12, the id of the first entry has expired.
            acquire 1 id 1 after -7),
        steps!(script("a settlement before the newest entry", &[T3.nth(1), S4.nth(1)], limits()) =>
            record 1 called "old", record 1 called "young" after 12,
            // At 12, the first receipt has expired.
            settle "old" 2 after -7, settle "young" 2, refund "old"),
        steps!(script("the epoch on a current log", CLAMPED, limits()) =>
            acquire 1, acquire 1 after -1_700_000_000_000_000, record 1 after 5),
    ]
}

fn not_held() -> Vec<Script> {
    let limits = || policy!("2/10us");
    vec![
        steps!(script("a peek does not clamp later times", NOT_HELD, limits()) =>
            acquire 1, peek 1 after 1_000, acquire 1 after -995),
        steps!(script("a peek at an empty log does not clamp later times", NOT_HELD, limits()) =>
            peek 1 after 1_000, acquire 1 after -995),
        steps!(script("a denial does not clamp later times", NOT_HELD, limits()) =>
            acquire 2, acquire 1 after 9, acquire 1 after -4),
        steps!(script("a repetition does not clamp later times", NOT_HELD, limits()) =>
            acquire 1 id 1, acquire 1 id 1 after 9, acquire 1 after -4),
        steps!(script("a settlement does not clamp later times", &[T3.nth(2), S2.nth(1)], limits()) =>
            acquire 1 called "it", settle "it" 2 after 9, settle "it" 1, acquire 1 after -4),
        steps!(script("a settlement of no entry does not clamp later times", NOT_HELD, limits()) =>
            acquire 1 called "it", refund "it", refund "it" after 9, acquire 1 after -4),
        steps!(script("a removed entry does not clamp later times", NOT_HELD, policy!("9/1ms")) =>
            record 1, record 2 called "newest" after 100, refund "newest", acquire 1 after -50),
        steps!(script("the only entry, once removed, does not clamp later times", NOT_HELD, limits()) =>
            record 2 called "only", refund "only", peek 1 after -50, acquire 1 after -50),
        steps!(script("a reset log does not clamp later times", &[T3.nth(2), S8.nth(1)], limits()) =>
            record 1, reset, acquire 1 after -50),
        steps!(script("a log does not clamp the times of another log", NOT_HELD, limits())
            .through(&super::policies::TWO_NAMES) =>
            record 1, acquire 1 key 1 after -50, acquire 1 by 1 after -50, acquire 1 after 3),
    ]
}
