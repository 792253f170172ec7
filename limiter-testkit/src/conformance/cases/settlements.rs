//! S1, S3, S4 and S8: which entry a settlement changes, refunds, and resets.

use limiter_core::policy;

use super::policies::TWO_NAMES;
use super::script::{Script, script, steps};
use crate::conformance::sentence::Citation;
use crate::conformance::sentence::Sentence::{S1, S3, S4, S8};

const NAMED: &[Citation] = &[S1.nth(1)];
const ELSEWHERE: &[Citation] = &[S1.nth(2)];
const NOTHING: &[Citation] = &[S4.nth(1)];
const TWICE: &[Citation] = &[S4.nth(2)];

pub(super) fn scripts() -> Vec<Script> {
    [named(), refunds(), gone(), resets()].concat()
}

fn abc(name: &'static str, about: &[Citation]) -> Script {
    let script = script(name, about, policy!("9/10us"));
    script.record(1).called("a").record(2).called("b").after(2).record(3).called("c").after(2)
}

fn named() -> Vec<Script> {
    vec![
        abc("the oldest entry is settled", NAMED).settle("a", 4).peek(1).after(5).peek(1).after(1).peek(1).after(2),
        abc("an entry in the middle is settled", NAMED).settle("b", 5).peek(1).after(6).peek(1).after(2),
        abc("the newest entry is settled", NAMED).settle("c", 1).peek(1).after(8).peek(1).after(2),
        steps!(abc("an entry is settled up and down", NAMED) =>
            settle "b" 5, settle "b" 1, settle "b" 3, settle "b" 2, refund "b"),
        steps!(script("the entry of a denied attempt is settled", NAMED, policy!("2/10us")).counting_attempts() =>
            acquire 2 called "admitted", acquire 1 called "denied" after 2, settle "denied" 2, settle "admitted" 1,
            refund "denied"),
        steps!(script("a receipt also identifies the time", NAMED, policy!("9/10us")) =>
            record 1 id 1 called "first", refund "first", record 2 id 1 called "second" after 1, settle "first" 5,
            refund "first", settle "second" 3),
        steps!(script("a receipt on another key", ELSEWHERE, policy!("9/10us")) =>
            record 2 called "here", record 2 key 1 called "there", settle "here" 5 key 1, refund "here" key 1,
            refund "there" key 0, settle "here" 1, peek 1 key 1),
        steps!(script("a receipt under another name", ELSEWHERE, policy!("9/10us"))
            .policy(policy!("9/20us")).through(&TWO_NAMES) =>
            record 2 called "here", record 2 by 1 called "there", settle "here" 5 by 1, refund "there" by 0,
            settle "here" 1, peek 1 by 1),
        steps!(script("a receipt on a key without a log", ELSEWHERE, policy!("9/10us")) =>
            record 2 called "here", refund "here" key 1, settle "here" 3 key 1)
        .about(&[S8.nth(1)])
        .reset()
        .key(1),
    ]
}

fn refunds() -> Vec<Script> {
    vec![
        steps!(abc("the oldest entry is refunded", &[S3.nth(1), S1.nth(1)]) =>
            refund "a", peek 1 after 5, peek 1 after 1, peek 1 after 1),
        steps!(abc("an entry in the middle is refunded", &[S3.nth(1), S1.nth(1)]) =>
            refund "b", peek 1 after 6, peek 1 after 2),
        abc("the newest entry is refunded", &[S3.nth(1), S1.nth(1)]).refund("c").peek(1).after(3).peek(1).after(5),
        steps!(abc("all entries are refunded", &[S3.nth(1)]) =>
            refund "b", refund "a", refund "c")
        .about(&[S8.nth(1)])
        .reset()
        .about(&[S3.nth(1)])
        .record(1),
        steps!(script("a refund frees units", &[S3.nth(1)], policy!("2/10us")) =>
            acquire 1, acquire 1 called "it", acquire 1, refund "it", acquire 1, acquire 1),
        steps!(script("a refund of the entry that an acquire waits for", &[S3.nth(1)], policy!("3/10us")) =>
            acquire 1 called "it", acquire 2 after 4, acquire 2, refund "it", acquire 2, acquire 1),
        abc("an entry is removed only once", TWICE).refund("b").refund("b").refund("b").after(3),
        steps!(script("one of two entries of equal time is removed only once", TWICE, policy!("9/10us")) =>
            record 2, record 2 called "it", record 2, refund "it", refund "it", refund "it"),
        steps!(script("the only entry is removed only once", TWICE, policy!("9/10us")) =>
            record 2 called "it", refund "it", refund "it"),
    ]
}

fn gone() -> Vec<Script> {
    let around = |name| script(name, NOTHING, policy!("9/10us")).record(2).called("it");
    vec![
        around("a receipt just before the end of its window").settle("it", 3).after(9).refund("it"),
        around("a receipt at the end of its window").settle("it", 3).after(10).refund("it"),
        around("a receipt just after the end of its window").refund("it").after(11).settle("it", 3),
        steps!(script("a receipt is valid for the longest window", NOTHING, policy!("9/5us, 9/20us, 9/10us")) =>
            record 2 called "it", settle "it" 3 after 19, settle "it" 4 after 1),
        // The log keeps the entry, but the receipt is valid only for the window of the policy that issued it.
        steps!(script("a receipt expires with the window of its policy", NOTHING, policy!("9/10us"))
            .policy(policy!("9/100us")) =>
            record 2 called "short", record 2 under 1 called "long", settle "short" 5 under 1 after 10,
            settle "long" 5 after 89, settle "long" 6 after 1),
        around("a refunded entry cannot be settled").refund("it").settle("it", 3).settle("it", 1).after(1),
        steps!(around("a refunded entry cannot be settled among other entries") =>
            record 1, refund "it", settle "it" 3, refund "it"),
        around("a settled entry can be refunded").settle("it", 5).refund("it").settle("it", 5),
        around("an entry of a log that has been reset").reset().settle("it", 3).record(2).settle("it", 3).refund("it"),
        around("a settlement of nothing appends nothing").reset().settle("it", 3).about(&[S8.nth(1)]).reset(),
    ]
}

fn resets() -> Vec<Script> {
    let log = |name| script(name, &[S8.nth(1)], policy!("2/10us"));
    vec![
        log("a reset removes all entries").record(1).record(1).after(1).record(3).reset().acquire(2).reset(),
        log("a reset of an empty log").reset().peek(1).reset().acquire(1).reset().reset(),
        log("a reset of a denied log").acquire(2).acquire(1).reset().acquire(2).acquire(1),
        log("a reset of expired entries").record(1).peek(1).after(10).reset().peek(1),
        log("a reset after the only entry is refunded").record(1).called("it").refund("it").reset(),
        log("a reset of one key").record(1).record(2).key(1).reset().peek(1).key(1).reset().key(1).reset().key(1),
        log("a reset removes the ids").record(1).id(1).record(1).id(2).reset().acquire(1).id(2).acquire(1).id(1),
        log("a reset of settled entries").record(1).called("it").settle("it", 5).reset().acquire(2).settle("it", 1),
    ]
}
