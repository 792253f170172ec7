//! L6 and L7: which entries an append drops.

use limiter_core::policy;

use super::script::{Script, script, steps};
use crate::conformance::sentence::Sentence::{L6, L7, L9, S4};

pub(super) fn scripts() -> Vec<Script> {
    [by_age(), by_cost()].concat()
}

/// Every plan reads all entries at the end, so an entry that is kept too long shows.
fn by_age() -> Vec<Script> {
    let age = L6.nth(1);
    let two = |name, policy| script(name, &[age], policy).record(1).record(2).after(9);
    vec![
        steps!(two("a record drops entries as old as the window", policy!("9/10us")) =>
            record 1, record 1 after 1, record 1 after 9),
        two("an acquire drops entries as old as the window", policy!("9/10us")).acquire(1).acquire(1).after(1),
        two("an append just before the end of a window", policy!("9/10us")).acquire(1).peek(1).after(5),
        two("an append just after the end of a window", policy!("9/10us")).acquire(1).after(2).peek(1),
        steps!(script("a denied attempt drops entries as old as the window", &[age], policy!("3/10us"))
            .counting_attempts() =>
            acquire 1, acquire 2 after 5, acquire 3 after 5),
        two("the longest window is the last", policy!("9/3us, 9/10us")).record(1).record(1).after(1),
        two("the longest window is the first", policy!("9/10us, 9/3us")).record(1).record(1).after(1),
        two("the longest window is in the middle", policy!("9/3us, 9/10us, 9/5us")).record(1).record(1).after(1),
        steps!(script("the ids of entries that are dropped by age", &[age, L9.nth(3)], policy!("9/10us"))
            .policy(policy!("9/1ms")) =>
            record 1 id 1, record 1 id 2 after 9, record 1 after 1,
            // The first entry is gone; the second is not.
            record 1 id 1 under 1, record 1 id 2 under 1),
        steps!(script("receipts of entries that are dropped by age", &[age, S4.nth(1)], policy!("9/1ms"))
            .policy(policy!("9/10us")) =>
            record 1 called "gone", record 1 called "there" after 1, record 1 under 1 after 9,
            // Both receipts are valid for a millisecond.
            settle "gone" 5, settle "there" 5, refund "gone"),
        steps!(script("an append drops all entries except the new one", &[age], policy!("9/10us"))
            .for_each(0..6, |script, _| script.record(1)) =>
            record 1 after 10, record 1 after 1_000_000),
    ]
}

fn by_cost() -> Vec<Script> {
    let (cost, held) = (L7.nth(1), &[L7.nth(1), S4.nth(1)]);
    let refunds = |script: Script| script.refund("c").refund("b").refund("a");
    let three = |name, policy, costs: [u64; 3]| {
        let script = script(name, &[cost], policy);
        refunds(script.record(costs[0]).called("a").record(costs[1]).called("b").record(costs[2]).called("c"))
    };
    vec![
        three("the newest entries fall just short of the maximum", policy!("6/10us"), [2, 2, 3]),
        three("the newest entries reach exactly the maximum", policy!("5/10us"), [2, 2, 3]),
        three("the newest entries exceed the maximum", policy!("4/10us"), [2, 2, 3]),
        three("the newest entry alone falls just short of the maximum", policy!("4/10us"), [2, 2, 3]),
        three("the newest entry alone reaches the maximum", policy!("3/10us"), [2, 2, 3]),
        three("the newest entry alone exceeds the maximum", policy!("2/10us"), [1, 1, 9]),
        three("the oldest entry is heavy", policy!("5/10us"), [9, 2, 2]),
        three("the middle entry is heavy", policy!("5/10us"), [1, 9, 1]),
        steps!(script("entries of equal time are dropped in order", &[cost], policy!("6/10us")) =>
            record 1 called "a", record 5 called "b", record 1 called "c", record 4 called "d", refund "a", refund "b",
            refund "d", refund "c"),
        script("the largest maximum is the last", &[cost], policy!("2/10us, 5/10us"))
            .for_each([1, 1, 1, 2, 1, 1], Script::record),
        script("the largest maximum is the first", &[cost], policy!("5/10us, 2/10us"))
            .for_each([1, 1, 1, 2, 1, 1], Script::record),
        script("the largest maximum has the shortest window", &[cost], policy!("5/3us, 2/10us"))
            .for_each([1, 1, 1, 2, 1, 1], |script, cost| script.record(cost).after(1)),
        script("denied attempts push out the oldest", &[cost], policy!("3/10us"))
            .counting_attempts()
            .for_each([1, 2, 1, 1, 3, 1, 2], |script, cost| script.acquire(cost).after(1)),
        steps!(script("an admitted acquire drops nothing under its own maximum", &[cost], policy!("3/10us")) =>
            acquire 1, acquire 1, acquire 1, acquire 1 after 10, acquire 2),
        steps!(script("receipts of entries that are dropped by cost", held, policy!("3/10us")) =>
            record 2 called "gone", record 3 called "there", settle "gone" 1, refund "gone", settle "there" 1,
            refund "gone"),
        steps!(script("the ids of entries that are dropped by cost", &[cost, L9.nth(3)], policy!("3/10us")) =>
            record 2 id 1, record 3 id 2, record 1 id 2, record 1 id 1),
        script("a log that counts attempts does not grow", &[cost], policy!("3/1ms"))
            .counting_attempts()
            .for_each(0..20, |script, _| script.acquire(1).after(1)),
    ]
}
