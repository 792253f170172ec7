//! The ends of all ranges, and stale answers that a store might cache.

use limiter_core::{MAX_COST, Policy, Timestamp, Window, policy};

use super::script::{Script, script};
use crate::conformance::generated::strategy::{limit, policy as of};
use crate::conformance::sentence::Sentence::{L2, L3, L7, L12, S2, S3, S6, S8, T1};

pub(super) fn scripts() -> Vec<Script> {
    [ends(), remembered()].concat()
}

fn moments(name: &'static str, policy: Policy) -> Script {
    script(name, &[T1.nth(1), L2.nth(1)], policy)
        .for_each([0, 0, -1, 2], |script, after| script.acquire(1).after(after))
        .acquire(2)
        .after(9)
        .peek(1)
}

fn ends() -> Vec<Script> {
    let longest = || of(&[limit(3, Window::MAX.as_micros())], false);
    let last = Timestamp::MAX.as_micros();
    let costs = |name| {
        script(name, &[L3.nth(1), S6.nth(1)], policy!("5/10us"))
            .acquire(0)
            .acquire(6)
            .acquire(u64::MAX)
            .peek(u64::MAX)
            .acquire(5)
            .called("all")
            .record(u64::MAX)
            .called("more")
            .peek(5)
            .settle("more", u64::MAX)
            .settle("all", u64::MAX)
            .settle("more", 2)
    };
    vec![
        costs("costs up to 2^64"),
        costs("costs up to 2^64, counting attempts").counting_attempts(),
        script("a full meter", &[L3.nth(1), L7.nth(1)], of(&[limit(MAX_COST, 10)], false))
            .record(MAX_COST)
            .called("all")
            .acquire(1)
            .acquire(MAX_COST)
            .settle("all", MAX_COST - 1)
            .acquire(1),
        moments("the shortest window", policy!("1/1us")),
        moments("the longest window", longest()),
        moments("the longest window at the beginning of time", longest()).starting_at(0),
        moments("the beginning of time", policy!("3/10us")).starting_at(0),
        moments("the end of time", policy!("3/10us")).starting_at(last - 5),
        moments("the longest window at the end of time", longest()).starting_at(last),
    ]
}

/// Stores that cache a denial or a log must notice changes. Everything happens at one instant.
fn remembered() -> Vec<Script> {
    let full = |name, about| script(name, &[about], policy!("3/10us")).acquire(3).called("it").acquire(1).acquire(1);
    vec![
        full("a denial before a refund", S3.nth(1)).refund("it").acquire(1),
        full("a denial before a settlement", S2.nth(1)).settle("it", 2).acquire(1).acquire(1),
        full("a denial before a reset", S8.nth(1)).reset().acquire(1),
        full("a denial under one of two policies", L3.nth(1)).policy(policy!("9/10us")).acquire(1).under(1).acquire(1),
        full("a denial of one of two keys", L3.nth(1)).acquire(1).key(1).acquire(1),
        full("a denial before its time has passed", L2.nth(1)).acquire(1).after(9).acquire(1).after(1),
        script("a denial of a heavy cost", &[L3.nth(1)], policy!("3/10us")).acquire(1).acquire(3).acquire(2).acquire(1),
        script("an admission before a record", &[L12.nth(1)], policy!("3/10us"))
            .acquire(1)
            .record(9)
            .acquire(1)
            .peek(1),
    ]
}
