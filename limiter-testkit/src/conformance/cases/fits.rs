//! L2 and L3: which entries count, and which costs fit.

use limiter_core::{MAX_COST, Policy, policy};

use super::script::{Script, script, steps};
use crate::conformance::generated::strategy::{limit, policy as of};
use crate::conformance::sentence::Sentence::{L2, L3};

pub(super) fn scripts() -> Vec<Script> {
    [windows(), sums(), waits()].concat()
}

fn windows() -> Vec<Script> {
    let around = |script: Script, window: i64| script.peek(1).after(window - 1).peek(1).after(1).peek(1).after(1);
    vec![
        around(
            script(
                "an entry aged one less than the window, exactly the window, and one more",
                &[L2.nth(1)],
                policy!("3/10us"),
            )
            .record(1),
            10,
        ),
        around(script("the age of the only unit", &[L2.nth(1)], policy!("1/7us")).acquire(1), 7),
        around(
            script("the age of an entry in a window of an hour", &[L2.nth(1)], policy!("2/1h")).acquire(1),
            3_600_000_000,
        ),
        steps!(script("each window counts separately", &[L2.nth(1)], policy!("9/5us, 9/10us, 9/20us")) =>
            record 1, record 2 after 1)
        .for_each([2, 1, 1, 1, 3, 1, 1, 1, 7, 1, 1, 1], |script, after| script.peek(1).after(after)),
        script("windows in any order", &[L2.nth(1)], policy!("9/20us, 9/5us, 9/10us"))
            .record(1)
            .for_each([4, 1, 4, 1, 9, 1], |script, after| script.peek(1).after(after)),
        script("several entries leave at different times", &[L2.nth(1)], policy!("9/10us"))
            .for_each([0, 1, 2, 3], |script, after| script.record(1).after(after))
            .for_each([3, 1, 1, 1, 1, 1, 1, 1], |script, after| script.peek(1).after(after)),
    ]
}

fn eight(of_max: impl Fn(u64) -> u64) -> Policy {
    let limits: Vec<_> = (1..=8).map(|n| limit(of_max(n), n * 3)).collect();
    of(&limits, false)
}

fn sums() -> Vec<Script> {
    let whole = L3.nth(2);
    let fills = |script: Script| script.acquire(5).acquire(4).acquire(4).acquire(3).acquire(2).acquire(1).peek(1);
    vec![
        steps!(script("costs that just fit and just do not", &[L3.nth(1)], policy!("10/10us")) =>
            acquire 3, acquire 8, acquire 7, acquire 1, peek 1),
        steps!(script("the whole maximum at once", &[L3.nth(1)], policy!("5/10us")) =>
            peek 5, acquire 5, acquire 1, acquire 5 after 10),
        steps!(script("a lower cost after a denial", &[L3.nth(1)], policy!("5/10us")) =>
            acquire 3, acquire 3, acquire 2, acquire 1),
        script("only the last limit denies", &[L3.nth(1)], policy!("9/10us, 2/10us")).acquire(2).acquire(1).peek(2),
        script("only the first limit denies", &[L3.nth(1)], policy!("2/10us, 9/10us")).acquire(2).acquire(1).peek(2),
        steps!(script("only the limit in the middle denies", &[L3.nth(1)], policy!("9/10us, 2/10us, 9/30us")) =>
            acquire 2, acquire 1),
        steps!(script("a denial uses up no other limit", &[whole], policy!("5/10us, 2/100us")) =>
            acquire 2, acquire 1 after 10, acquire 1, peek 1, acquire 2 after 90),
        fills(script("each of eight limits denies in turn", &[L3.nth(1)], eight(|n| 12 - n))),
        script("eight limits, the smallest first", &[L3.nth(1)], eight(|n| n))
            .for_each([0, 1, 1, 1, 3, 3, 4, 9], |script, after| script.acquire(1).after(after)),
        steps!(script("records count above the maximum", &[L3.nth(1)], policy!("3/10us")) =>
            record 2, record 5, acquire 1 after 9, acquire 1 after 1),
        steps!(script("denied attempts count", &[L3.nth(1)], policy!("3/10us")).counting_attempts() =>
            acquire 2, acquire 2 after 4, acquire 1 after 6, acquire 2, acquire 1),
        script("sums beyond 2^32", &[L3.nth(1)], policy!("8589934593/10us"))
            .acquire(1 << 32)
            .acquire(1 << 32)
            .acquire(1)
            .acquire(1)
            .peek(1 << 32),
        script("sums up to 2^53", &[L3.nth(1)], of(&[limit(MAX_COST, 10)], false))
            .record(MAX_COST - 1)
            .acquire(2)
            .acquire(1)
            .record(u64::MAX)
            .peek(1)
            .peek(1)
            .after(10),
    ]
}

fn waits() -> Vec<Script> {
    vec![
        steps!(script("waiting for the stated retry time succeeds", &[L2.nth(1), L3.nth(1)], policy!("3/10us")) =>
            acquire 1, acquire 2 after 4, acquire 1 after 3, acquire 1 after 2, acquire 1 after 1, acquire 2),
        steps!(script("a heavy cost waits for several entries", &[L2.nth(1), L3.nth(1)], policy!("6/10us")) =>
            acquire 3, acquire 2 after 2, acquire 1 after 3, acquire 4, acquire 6, acquire 4 after 6,
            acquire 4 after 1),
        steps!(script("the longest of several waits", &[L2.nth(1), L3.nth(1)], policy!("2/5us, 3/20us")) =>
            acquire 2, acquire 1 after 5, acquire 1, acquire 2 after 5, acquire 2 after 9, acquire 2 after 1),
    ]
}
