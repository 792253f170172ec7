//! L6, L7 and L9 when the operation's policy differs from the limiter's, and logs whose policy changes.

use limiter_core::{Policy, policy};

use super::script::{Script, script, steps};
use crate::conformance::generated::strategy::{limit, policy as of};
use crate::conformance::sentence::Sentence::{L1, L2, L6, L7, L9, L11, S4, S8};
use crate::conformance::sequence::case::CaseLimiter;

/// Two limiters with different names on one key.
pub(super) const TWO_NAMES: [CaseLimiter; 2] =
    [CaseLimiter { name: 0, policy: Some(0) }, CaseLimiter { name: 1, policy: Some(1) }];

/// Policies that are longer, shorter, smaller and larger than the first.
fn five() -> [Policy; 5] {
    [[limit(6, 30)], [limit(6, 5)], [limit(6, 90)], [limit(2, 30)], [limit(20, 30)]].map(|limits| of(&limits, false))
}

/// Appends under each policy in turn.
fn alternating(name: &'static str) -> Script {
    let [first, others @ ..] = five();
    let script = script(name, &[L6.nth(1), L7.nth(1)], first).policies(others).record(1).called("first");
    let script = script.for_each(0..4, |script, _| {
        script.for_each(0..5, |script, policy| {
            let script = script.acquire(1).under(policy).after(3).peek(1);
            script.record(2).under(policy).after(1).peek(1)
        })
    });
    steps!(script => record 1 called "last", settle "first" 1, settle "last" 4 under 1, acquire 1 after 40, peek 1)
}

pub(super) fn scripts() -> Vec<Script> {
    let hour = |name, about| script(name, about, policy!("3/10us, 100/3600us")).policy(policy!("50/10us"));
    let two_windows = |name, limiter, operation| {
        let script = script(name, &[L6.nth(1)], limiter).policy(operation).through_a_limiter().record(1);
        script.record(1).under(1).after(50).record(1).under(1).after(49).record(1).under(1).after(1)
    };
    vec![
        steps!(hour("another policy keeps what the limiter's counts", &[L6.nth(1), L7.nth(1)]).through_a_limiter() =>
            acquire 1, acquire 2, acquire 1 under 1 after 20, peek 1, acquire 49 under 1, acquire 1 under 1, peek 1,
            record 60 under 1 after 10, peek 1, peek 1 after 3_570, peek 1 after 20, acquire 1 after 11),
        two_windows("the limiter's window is the longer one", policy!("9/100us"), policy!("9/10us")),
        two_windows("the operation's window is the longer one", policy!("9/10us"), policy!("9/100us")),
        script("the limiter's maximum is the larger one", &[L7.nth(1)], policy!("5/100us"))
            .policy(policy!("2/100us"))
            .through_a_limiter()
            .for_each([2, 1, 1, 1, 2, 2], |script, cost| script.record(cost).under(1).peek(1)),
        script("the operation's maximum is the larger one", &[L7.nth(1)], policy!("2/100us"))
            .policy(policy!("5/100us"))
            .through_a_limiter()
            .for_each([2, 1, 1, 1, 2, 2], |script, cost| script.record(cost).under(1).peek(1)),
        script("the window of one policy and the maximum of the other", &[L6.nth(1), L7.nth(1)], policy!("2/100us"))
            .policy(policy!("5/10us"))
            .through_a_limiter()
            .for_each([2, 1, 1, 1, 2, 2, 1], |script, cost| script.record(cost).under(1).after(20).peek(1))
            .for_each([1, 1, 9], |script, cost| script.record(cost).after(30)),
        steps!(
            script("without a limiter, only the operation's policy counts", &[L6.nth(1), L7.nth(1)], policy!("9/100us"))
            .policy(policy!("2/10us")) =>
            record 1, record 1 after 20, record 1 under 1 after 9, record 2 under 1 after 2, peek 1),
        alternating("alternating policies through a limiter").through_a_limiter(),
        alternating("alternating policies without a limiter"),
        steps!(script("all policies share one log", &[L11.nth(3), L2.nth(1)], policy!("5/10us"))
            .policies([policy!("2/5us"), policy!("4/100us"), policy!("7/10us, 3/2us")]) =>
            acquire 3, acquire 2 under 3 after 1, peek 1 under 1, acquire 1 under 1 after 4, peek 1 under 2,
            acquire 1 under 2 after 5, peek 1 under 3, acquire 1),
        steps!(hour("an id repeats within the limiter's window", &[L9.nth(1)]).through_a_limiter() =>
            acquire 1 id 1, acquire 1 id 1 under 1 after 20, acquire 1 id 1 under 1 after 3_579,
            record 1 id 1 under 1 after 1),
        steps!(hour("a receipt is valid for the limiter's window", &[S4.nth(1)]).through_a_limiter() =>
            record 1 under 1 called "it", settle "it" 2 under 1 after 11, settle "it" 3 after 3_588,
            settle "it" 4 after 1),
        steps!(steps!(script("two limiters on one key", &[L1.nth(2)], policy!("3/10us"))
            .policy(policy!("2/100us")).through(&TWO_NAMES) =>
            acquire 2 called "one", acquire 1 by 1 under 1 called "other", peek 1, peek 1 by 1 under 1,
            settle "one" 1, settle "other" 2 under 1, peek 1)
            .about(&[L1.nth(2), S8.nth(1)]) =>
            reset, peek 1 by 1 under 1, reset by 1, reset by 1),
    ]
}
