//! L9, L10 and L13: idempotency keys.

use limiter_core::policy;

use super::policies::TWO_NAMES;
use super::script::{Script, script, steps};
use crate::conformance::sentence::Citation;
use crate::conformance::sentence::Sentence::{L1, L5, L9, L13, S1, S3, S8};

const NOT_AGAIN: &[Citation] = &[L9.nth(1)];
const ORIGINAL: &[Citation] = &[L9.nth(2)];
const ONCE: &[Citation] = &[L9.nth(3)];

pub(super) fn scripts() -> Vec<Script> {
    [repeated(), verdicts(), windows(), bits(), elsewhere()].concat()
}

fn repeated() -> Vec<Script> {
    let limits = || policy!("3/10us");
    vec![
        steps!(script("a repeated acquire counts once", NOT_AGAIN, limits()) =>
            acquire 1 id 1, acquire 1 id 1, acquire 1 id 1 after 5),
        steps!(script("a repeated record counts once", NOT_AGAIN, limits()) =>
            record 2 id 1, record 2 id 1, record 2 id 1 after 5),
        steps!(script("a repeated attempt counts once", NOT_AGAIN, limits()).counting_attempts() =>
            acquire 3, acquire 2 id 1, acquire 2 id 1 after 3, acquire 1 after 7),
        steps!(script("acquires and records share ids", NOT_AGAIN, limits()) =>
            acquire 1 id 1, record 9 id 1, record 2 id 2, acquire 1 id 2, acquire 2 id 1),
        steps!(script("all policies share ids", NOT_AGAIN, limits())
            .policies([policy!("1/10us"), policy!("9/5us, 9/90us")]) =>
            acquire 1 id 1, acquire 1 id 1 under 1, acquire 1 id 1 under 2 after 9, acquire 1 id 1 under 2 after 80,
            acquire 1 id 1 under 2 after 1),
        steps!(script("other entries do not hide an id", NOT_AGAIN, limits()) =>
            acquire 1 id 1, acquire 1 id 2, acquire 1, acquire 1 id 1, acquire 1 id 2 after 9, acquire 1 id 1),
        steps!(script("a peek with an id repeats nothing", &[L9.nth(1), L5.nth(1)], limits()) =>
            acquire 1 id 1, peek 1 id 1, peek 3 id 1, acquire 1 id 1),
        steps!(script("the receipt of a repetition", NOT_AGAIN, limits()) =>
            acquire 1 id 1, record 3 id 1 called "again" after 2, settle "again" 2, acquire 1 id 1, refund "again",
            acquire 1 id 1),
        steps!(script("an id with a cost that is refused", NOT_AGAIN, limits()) =>
            acquire 1 id 1, acquire 0 id 1, acquire 4 id 1),
    ]
}

fn verdicts() -> Vec<Script> {
    let limits = || policy!("2/10us");
    vec![
        steps!(script("an admitted acquire stays admitted", ORIGINAL, limits()) =>
            acquire 1 id 1, acquire 1, acquire 2 id 1, acquire 1 id 1 after 9),
        steps!(script("a denied attempt stays denied", ORIGINAL, limits()).counting_attempts() =>
            acquire 2, acquire 1 after 5 id 1, acquire 1 id 1 after 5, acquire 1 id 1 after 4),
        steps!(script("a record that did not fit keeps its verdict", ORIGINAL, limits()) =>
            record 2, record 1 id 1 after 5, acquire 1 id 1 after 5, record 1 id 1 after 4),
        steps!(script("a record that fitted keeps its verdict", ORIGINAL, limits()) =>
            record 2 id 1, record 2, record 2 id 1, acquire 2 id 1),
        steps!(script("a repetition returns the current usage", ORIGINAL, policy!("9/10us, 9/5us")) =>
            acquire 1 id 1, acquire 2 after 3, acquire 1 id 1 after 2, acquire 3, acquire 1 id 1),
        steps!(script("the verdict survives a settlement", ORIGINAL, limits()).counting_attempts() =>
            acquire 2 called "first", acquire 2 id 1 called "denied", settle "denied" 1, acquire 1 id 1, refund "first",
            acquire 1 id 1),
    ]
}

fn windows() -> Vec<Script> {
    let limits = || policy!("3/10us");
    vec![
        steps!(script("an id just before the end of its window", NOT_AGAIN, limits()) =>
            acquire 1 id 1, acquire 1 id 1 after 9),
        script("an id at the end of its window", ONCE, limits()).acquire(1).id(1).acquire(1).id(1).after(10),
        script("an id just after the end of its window", ONCE, limits()).acquire(1).id(1).acquire(1).id(1).after(11),
        steps!(script("a repetition does not make an entry younger", NOT_AGAIN, limits()) =>
            acquire 1 id 1, acquire 1 id 1 after 9, acquire 1 id 1 after 1, acquire 1 id 1 after 9),
        steps!(script("a longer window finds an id that a shorter one does not", ONCE, limits())
            .policy(policy!("9/100us")) =>
            record 1 id 1, record 1 id 1 under 1 after 50, record 1 id 1, record 1 id 1 under 1 after 99),
        steps!(script("the longest of several windows", NOT_AGAIN, policy!("9/5us, 9/20us, 9/10us")) =>
            acquire 1 id 1, acquire 1 id 1 after 19, acquire 1 id 1 after 1),
        script("an id used a third time", ONCE, limits())
            .for_each(0..3, |script, _| script.acquire(1).id(1).after(10).acquire(1).id(1)),
        steps!(steps!(script("an id reused after a refund", &[S3.nth(1)], limits()) =>
            acquire 2 id 1 called "first", refund "first", acquire 1 id 1 called "second" after 1, acquire 1 id 1)
            .about(&[S1.nth(1), S3.nth(1)]) =>
            refund "first", settle "second" 2, refund "second", acquire 1 id 1 after 1),
        steps!(script("an id reused after a refund, among other entries", &[S3.nth(1)], limits()) =>
            acquire 1 id 2, acquire 1 id 1 called "it", acquire 1 id 3, refund "it", acquire 1 id 2, acquire 1 id 3,
            acquire 1 id 1 after 1),
        steps!(script("an id reused after a reset", &[S8.nth(1)], limits()) =>
            acquire 1 id 1, reset, acquire 2 id 1, acquire 2 id 1),
    ]
}

fn bits() -> Vec<Script> {
    let whole = [L9.nth(1), L13.nth(1)];
    let exact =
        [0, 1, u128::MAX, 1 << 127, 1 << 64, 1 << 63, u64::MAX.into(), 1 << 53, (1 << 53) + 1, i64::MAX as u128];
    vec![
        script("ids that differ in one bit", &whole, policy!("999/1ms"))
            .record(1)
            .id(128)
            .for_each(0..128, |script, bit| script.record(1).id(bit))
            .for_each([0, 31, 63, 64, 127, 128], |script, bit| script.record(1).id(bit)),
        script("ids at the ends of their range", &whole, policy!("99/1ms"))
            .for_each(exact, |script, id| script.record(1).exact_id(id))
            .for_each(exact, |script, id| script.record(2).exact_id(id)),
    ]
}

fn elsewhere() -> Vec<Script> {
    let limits = || policy!("2/10us");
    vec![
        steps!(script("one id on two keys", &[L1.nth(2)], limits()) =>
            acquire 1 id 1, acquire 2 id 1 key 1, acquire 1 id 1, acquire 1 id 1 key 1 after 1, reset,
            acquire 1 id 1 key 1),
        steps!(script("one id under two names", &[L1.nth(2)], limits()).policy(policy!("9/10us")).through(&TWO_NAMES) =>
            acquire 1 id 1, acquire 2 id 1 by 1, acquire 1 id 1, acquire 1 id 1 by 1 after 1),
        steps!(script("a refund of an id on one of two keys", &[L1.nth(2)], limits()) =>
            acquire 1 id 1 called "here", acquire 2 id 1 key 1 after 1, refund "here", acquire 1 id 1 key 1,
            acquire 1 id 1),
    ]
}
