//! S2, S5, S6 and S7: what a settlement changes, and what it returns.

use limiter_core::{MAX_COST, policy};

use super::script::{Script, script, steps};
use crate::conformance::generated::strategy::{limit, policy as of};
use crate::conformance::sentence::Sentence::{L7, L9, S2, S5, S6, S7};

pub(super) fn scripts() -> Vec<Script> {
    [kept(), at_the_edges(), beyond(), answers()].concat()
}

fn kept() -> Vec<Script> {
    let keeps = S2.nth(1);
    vec![
        steps!(script("a settled entry keeps its time", &[keeps], policy!("9/10us")) =>
            record 1 called "it", settle "it" 5 after 6, peek 1 after 3, peek 1 after 1),
        steps!(script("a settled entry keeps its time among others", &[keeps], policy!("9/10us")) =>
            record 1 called "it", record 1 after 4, settle "it" 3 after 2, peek 1 after 3, peek 1 after 1,
            peek 1 after 4),
        steps!(script("a settled entry keeps its place", &[keeps, L7.nth(1)], policy!("5/10us")) =>
            record 2 called "first", record 2 called "second", settle "first" 1,
            // The last two entries reach 5, so the first is dropped.
            record 3, settle "second" 1, record 1, record 1),
        steps!(script("a settled entry keeps its id", &[keeps, L9.nth(1)], policy!("9/10us")) =>
            acquire 2 id 1 called "it", settle "it" 4, acquire 2 id 1, settle "it" 1 after 9, acquire 2 id 1,
            acquire 2 id 1 after 1),
        steps!(script("a settlement to the same cost", &[keeps, S7.nth(1)], policy!("9/10us")) =>
            record 1 called "one", record 3 called "three" after 1, settle "three" 3, settle "one" 1,
            settle "three" 3 after 1, refund "three"),
        script("a settlement may be repeated", &[keeps], policy!("9/10us"))
            .record(1)
            .called("it")
            .for_each([4, 4, 2, 9, 1], |script, cost| script.settle("it", cost).after(1)),
        steps!(script("settlements free units and use them up", &[keeps], policy!("3/10us")) =>
            acquire 3 called "it", acquire 1, settle "it" 2, acquire 1, settle "it" 3, acquire 1, settle "it" 1,
            acquire 1),
        steps!(script("a settlement of the entry that an acquire waits for", &[keeps], policy!("6/10us")) =>
            acquire 1 called "first", acquire 3 called "second" after 2, acquire 2 after 2, acquire 3, settle "first" 3,
            acquire 3, settle "second" 1, acquire 4, acquire 3 after 5),
    ]
}

/// Settles up and down around the end of a window W: at W - 1, W and W + 1.
fn at_the_edges() -> Vec<Script> {
    let three = |name| {
        let script = script(name, &[S2.nth(1), S7.nth(1)], policy!("9/5us, 9/10us, 9/20us")).record(2).called("it");
        script.record(1).called("other").after(1)
    };
    let around = |script: Script, window: i64| {
        script.settle("it", 4).after(window - 2).settle("it", 1).after(1).settle("it", 7).after(1).settle("other", 3)
    };
    vec![
        around(three("a settlement around the end of the shortest window"), 5),
        around(three("a settlement around the end of the middle window"), 10),
        around(three("a settlement around the end of the longest window"), 20),
        around(
            three("a settlement of an entry that only a longer policy sees")
                .policy(policy!("99/1ms"))
                .record(1)
                .under(1)
                .after(1),
            20,
        ),
    ]
}

fn beyond() -> Vec<Script> {
    let meter = || of(&[limit(MAX_COST, 10)], false);
    let abc = |name| {
        let script = script(name, &[S5.nth(1)], meter());
        script.record(1).called("a").record(2).called("b").record(3).called("c")
    };
    let never_fails = S6.nth(1);
    vec![
        steps!(script("a settlement above the maximum", &[never_fails], policy!("3/10us")) =>
            acquire 1 called "it", acquire 1 after 1, settle "it" 100, acquire 1, settle "it" 3, acquire 1 after 8,
            acquire 1 after 1),
        script("a settlement above every maximum", &[never_fails], policy!("3/10us, 5/20us"))
            .acquire(1)
            .called("it")
            .settle("it", 6)
            .settle("it", u64::MAX)
            .acquire(1)
            .after(10)
            .settle("it", 1)
            .acquire(1),
        // Only settlements to `MAX_COST` drop entries: 3/10us alone would keep all of them.
        steps!(script("a settlement above the maximum drops nothing", &[S5.nth(1)], policy!("3/10us")) =>
            record 1 called "old", record 1 called "new", settle "new" 50, settle "old" 50, settle "new" 1,
            settle "old" 1),
        abc("a settlement that reaches 2^52 alone").settle("c", MAX_COST).refund("a").refund("b").settle("c", 1),
        abc("a settlement beyond 2^52").settle("c", u64::MAX).refund("a").refund("b").settle("c", 1),
        abc("a settlement that falls just short of 2^52").settle("c", MAX_COST - 3).settle("c", 1).refund("a"),
        abc("a settlement that reaches 2^52 with newer entries")
            .settle("b", MAX_COST - 3)
            .refund("a")
            .settle("b", 1)
            .refund("c"),
        abc("a settlement that reaches 2^52 with older entries").settle("b", MAX_COST - 4).settle("b", 1).refund("a"),
        abc("a settlement of the oldest entry to 2^52").settle("a", MAX_COST).settle("b", 1).refund("a").refund("c"),
        script("records of 2^52", &[L7.nth(1)], meter())
            .record(u64::MAX)
            .called("first")
            .record(u64::MAX)
            .called("second")
            .refund("first")
            .settle("second", 1)
            .record(MAX_COST - 1)
            .refund("second"),
    ]
}

fn answers() -> Vec<Script> {
    let says = S7.nth(1);
    vec![
        steps!(script("a settlement reports usage under its own policy", &[says], policy!("9/10us"))
            .policies([policy!("2/5us"), policy!("3/2us, 99/50us, 5/10us"), policy!("1/1us")]) =>
            record 1, record 2 called "it" after 3, settle "it" 4 under 1, settle "it" 3 under 2 after 2,
            settle "it" 5 under 3, refund "it" under 2),
        steps!(script("a settlement of no entry reports usage under its own policy", &[says], policy!("9/10us"))
            .policies([policy!("2/5us"), policy!("3/2us, 99/50us, 5/10us")]) =>
            record 2 called "it", record 3 after 1, refund "it", refund "it" under 1 after 3, refund "it" under 2,
            settle "it" 1 under 1 after 1),
        steps!(script("the result states whether anything was settled", &[says], policy!("9/10us")) =>
            record 1 called "it", settle "it" 2, settle "it" 2, refund "it", refund "it", settle "it" 2),
        steps!(script("the times in the result of a settlement", &[says], policy!("3/10us, 4/20us")) =>
            record 1 called "a", record 3 called "b" after 4, settle "a" 2 after 3, settle "b" 1 after 1,
            refund "a" after 1, refund "b" after 1),
    ]
}
