//! L4, L5, L8 and L10: what an operation appends, and that nothing else changes a log.

use limiter_core::policy;

use super::script::{Script, script, steps};
use crate::conformance::sentence::Citation;
use crate::conformance::sentence::Sentence::{L4, L5, L8, L10, L13, S7};

const NOTHING: &[Citation] = &[L4.nth(2), L8.nth(1)];

pub(super) fn scripts() -> Vec<Script> {
    [modes(), unchanged(), separate()].concat()
}

fn modes() -> Vec<Script> {
    let leaves_no_id = L10.nth(1);
    vec![
        steps!(script("an acquire appends if it fits", &[L4.nth(1)], policy!("2/10us")) =>
            acquire 2, acquire 1, acquire 1, peek 1),
        steps!(script("an attempt is always appended", &[L4.nth(1)], policy!("2/10us")).counting_attempts() =>
            acquire 2, acquire 1, acquire 1 after 9, acquire 2 after 1),
        script("a record is always appended", &[L4.nth(1)], policy!("2/10us")).record(3).record(1).record(1).after(10),
        script("a peek is never appended", &[L4.nth(1)], policy!("2/10us")).peek(1).peek(2).acquire(2).peek(1).peek(2),
        steps!(script("a peek of attempts is never appended", &[L4.nth(1)], policy!("2/10us")).counting_attempts() =>
            peek 2, acquire 2, peek 1, peek 1 after 10),
        script("an operation that is refused appends nothing", &[L4.nth(2)], policy!("5/10us, 3/20us"))
            .acquire(0)
            .peek(0)
            .record(0)
            .acquire(4)
            .peek(4)
            .acquire(u64::MAX)
            .acquire(4)
            .id(1)
            .acquire(1)
            .id(1)
            .acquire(0)
            .id(1)
            .acquire(4)
            .id(1),
        steps!(script("a denied acquire leaves no id", &[leaves_no_id], policy!("2/10us")) =>
            acquire 2, acquire 1 id 1, acquire 1 id 1 after 1, acquire 1 id 1 after 9, acquire 1 id 1),
        steps!(script("a denied acquire leaves no id for a record", &[leaves_no_id], policy!("2/10us")) =>
            acquire 2, acquire 1 id 1, record 1 id 1, record 1 id 1),
        steps!(script("a peek leaves no id", NOTHING, policy!("2/10us")) =>
            peek 1 id 1, acquire 1 id 1, peek 2 id 1, acquire 1 id 1),
    ]
}

/// Starts from entries that the first policy sees. The operations then run under a shorter and smaller policy, and
/// must drop none of them.
fn unchanged() -> Vec<Script> {
    let seen = |name, about| {
        steps!(script(name, about, policy!("100/1000us")).policy(policy!("2/10us")) =>
            record 3 called "old", record 1 after 500)
    };
    vec![
        seen("a peek drops nothing", NOTHING).peek(1).under(1).after(3).peek(1).under(1).after(30).peek(1),
        seen("a denied acquire drops nothing", NOTHING).acquire(2).under(1).after(3).peek(1),
        seen("a denied acquire with an id drops nothing", NOTHING).acquire(2).under(1).id(1).after(3).peek(1),
        seen("a refused operation drops nothing", NOTHING).acquire(3).under(1).after(30).peek(1),
        steps!(seen("a repetition drops nothing", NOTHING) =>
            record 1 id 1, acquire 1 under 1 id 1 after 3, record 9 under 1 id 1 after 3, peek 1),
        steps!(seen("a settlement drops nothing", &[L8.nth(1), S7.nth(1)]) =>
            record 2 called "young", settle "young" 5 under 1 after 3, settle "young" 1 under 1, peek 1),
        steps!(seen("a settlement of nothing drops nothing", NOTHING) =>
            record 2 called "young", refund "young" under 1, refund "young" under 1 after 30, settle "young" 4 under 1,
            peek 1),
        steps!(seen("a refund drops nothing else", &[L8.nth(1)]) =>
            record 2 called "young", refund "young" under 1 after 3, peek 1),
        steps!(seen("a settlement of an old entry drops nothing", &[L8.nth(1)]) =>
            settle "old" 7 under 1 after 3, refund "old" under 1 after 3, peek 1),
        steps!(seen("an operation on another log drops nothing", &[L8.nth(1)]) =>
            record 9 under 1 key 1 after 30, reset key 1, peek 1),
    ]
}

fn separate() -> Vec<Script> {
    let (own, ties, unique) = (L5.nth(1), L5.nth(2), L13.nth(1));
    vec![
        script("each entry has its own cost", &[own], policy!("20/10us"))
            .for_each([1, 7, 2, 5], |script, cost| script.acquire(cost).after(2))
            .for_each([3, 2, 2, 2], |script, after| script.peek(1).after(after)),
        steps!(script("each entry has its own time", &[own], policy!("9/10us")) =>
            acquire 1 called "a", acquire 1 called "b" after 3, settle "a" 2, settle "b" 2 after 4, peek 1 after 3,
            peek 1 after 3),
        steps!(script("entries of equal time and cost", &[ties], policy!("9/10us")) =>
            acquire 1 called "a", acquire 1 called "b", acquire 1 called "c", refund "b", refund "a", refund "b",
            refund "c"),
        steps!(script("records of equal time and different cost", &[ties, unique], policy!("9/10us")) =>
            record 1 called "a", record 1 called "b", record 1 called "c", record 1 called "d", settle "c" 5,
            settle "a" 3, refund "d", refund "a", settle "c" 1, refund "b"),
        steps!(script("attempts of equal time", &[ties], policy!("2/10us")).counting_attempts() =>
            acquire 1 called "a", acquire 2 called "denied", acquire 1 called "denied again", refund "denied",
            acquire 1, refund "denied again"),
        steps!(script("entries of equal time with and without ids", &[ties, unique], policy!("9/10us")) =>
            acquire 1 id 1 called "with", acquire 2 called "without", acquire 3 id 2 called "another", refund "with",
            refund "another", settle "without" 4),
        counted(script("caller ids among ids from the store", &[unique], policy!("1000000/10us"))),
        many(script("more entries than a small log holds", &[own, unique], policy!("400/1ms"))),
    ]
}

/// Mixes entries without ids with entries whose ids are small numbers. A store that numbers its entries must not
/// confuse them.
fn counted(mut script: Script) -> Script {
    const NAMES: [&str; 18] =
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"];
    for (i, name) in NAMES.into_iter().enumerate() {
        script = script.record(1 << i).called(name);
        if i % 3 > 0 {
            script = script.exact_id(17 - i as u128);
        }
    }
    script
        .for_each(NAMES.into_iter().step_by(2), Script::refund)
        .for_each(NAMES.into_iter().skip(1).step_by(2), |script, name| script.settle(name, 1))
}

/// Exceeds 128 entries, beyond which Redis, for example, changes the encoding of a sorted set.
fn many(script: Script) -> Script {
    steps!(script.for_each(0..140_u64, |script, i| script.acquire(1 + i % 2 * (i % 3)).after(7)) =>
        acquire 1 called "it", settle "it" 3 after 19, refund "it", acquire 9 after 7)
}
