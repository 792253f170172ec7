//! Random cases. Their steps are drafts until it is known which windows, costs and receipts there are.

use limiter_core::store::Mode;
use limiter_core::{Policy, Timestamp};
use proptest::bool::weighted;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::policies;
use crate::case::{Case, CaseId, CaseLimiter, Place, Step, Verb};
use crate::policies::START;

/// How far time advances before a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum After {
    Micros(i64),
    /// By the window with this number, modulo the number of windows, times 1 or -1, and this many microseconds.
    Window(usize, i64, i64),
    /// By this many units of time, and microseconds modulo a unit.
    Units(i64, u64),
}

/// A step, when it happens, and the tag of its entry. A settlement's receipt identifies the last entry with a tag, so it stays
/// the same if other steps are left out.
pub(super) type Draft = (Step, After, u8);

const TAGS: u8 = 16;

/// The limiters of a case: one with a default policy, one without, the first one with another default, and one with another name.
const LIMITERS: [CaseLimiter; 4] = {
    const fn limiter(name: u8, policy: Option<u8>) -> CaseLimiter {
        CaseLimiter { name, policy }
    }
    [
        limiter(0, Some(0)),
        limiter(0, None),
        limiter(0, Some(1)),
        limiter(1, Some(0)),
    ]
};

/// The last two are refused or saturate.
const COSTS: [u64; 10] = [1, 2, 3, 4, 5, 7, 8, 9, 0, u64::MAX];

fn cost() -> impl Strategy<Value = u64, Tree: Send> {
    prop_oneof![2 => 1..=2_u64, 3 => select(&COSTS)]
}

fn place(keys: u8) -> impl Strategy<Value = Option<Place>, Tree: Send> {
    let limiter = prop_oneof![4 => Just(0), 4 => 0..4_u8];
    let place = (limiter, 0..keys).prop_map(|(limiter, key)| Place { limiter, key });
    place.prop_map(|place| Some(place).filter(|place| *place != Place::default()))
}

/// Returns an acquire, a peek or a record.
fn operation(
    modes: &'static [Mode],
    cost: impl Strategy<Value = u64, Tree: Send> + Send + Sync,
    ids: impl Strategy<Value = Option<u8>, Tree: Send> + Send + Sync,
) -> impl Strategy<Value = Step, Tree: Send> {
    (select(modes), cost, ids, 0..3_u8).prop_map(|(mode, cost, id, policy)| Step {
        id: id.map(CaseId::Fresh),
        policy,
        ..Step::new(Verb::Run(mode), cost)
    })
}

/// Returns a settlement, a refund or a renewal. The number of its receipt is a tag.
fn settlement(
    cost: impl Strategy<Value = u64, Tree: Send> + Send + Sync,
) -> impl Strategy<Value = Step, Tree: Send> {
    let cost = prop_oneof![1 => Just(0), 1 => cost];
    (
        weighted(0.2),
        0..usize::from(TAGS),
        cost,
        any::<bool>(),
        0..3_u8,
    )
        .prop_map(|(is_renewal, of, cost, has_id, policy)| match is_renewal {
            true => Step {
                // The entry's id.
                id: has_id.then_some(CaseId::Fresh(0)),
                policy,
                ..Step::new(Verb::Renew(of), 0)
            },
            false => Step {
                policy,
                ..Step::new(Verb::Settle(of), cost)
            },
        })
}

/// Returns a step on one of some keys.
pub(super) fn step(keys: u8) -> impl Strategy<Value = Draft, Tree: Send> {
    use Mode::{Acquire, Peek, Record};
    const MODES: [Mode; 7] = [Acquire, Acquire, Acquire, Acquire, Acquire, Record, Peek];
    let operation = operation(&MODES, cost(), option::weighted(0.375, 0..2_u8));
    let operation = (operation, place(keys)).prop_map(|(step, on)| Step { on, ..step });
    // Rarely on a log that did not issue the receipt.
    let settlement = (settlement(cost()), option::weighted(0.1, place(keys)));
    let settlement = settlement.prop_map(|(step, on)| Step {
        on: on.flatten(),
        ..step
    });
    let reset = place(keys).prop_map(|on| Step {
        on,
        ..Step::new(Verb::Reset, 0)
    });
    let after = prop_oneof![
        7 => Just(0).prop_map(After::Micros),
        3 => (1..9_i64).prop_map(After::Micros),
        3 => (0..24_usize, -1..=1_i64).prop_map(|(of, more)| After::Window(of, 1, more)),
        2 => (-8..0_i64).prop_map(After::Micros),
        1 => (0..24_usize).prop_map(|of| After::Window(of, -1, 0)),
    ];
    (
        prop_oneof![14 => operation, 5 => settlement, 1 => reset],
        after,
        0..TAGS,
    )
}

/// Returns a step of traffic, which keeps the limits of one log nearly full for a long time.
pub(super) fn busy_step() -> impl Strategy<Value = Draft, Tree: Send> {
    const TIMES: [i64; 16] = [0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 7, 9, 19, 60, -4];
    const MODES: [Mode; 4] = [Mode::Acquire, Mode::Acquire, Mode::Acquire, Mode::Record];
    let operation = operation(&MODES, 1..=3_u64, option::weighted(0.125, 0..60_u8));
    let after =
        (select(&TIMES), 0..60_000_000_u64).prop_map(|(units, more)| After::Units(units, more));
    (
        prop_oneof![4 => operation, 1 => settlement(1..=3_u64)],
        after,
        0..TAGS,
    )
}

/// Returns cases with these steps, windows, and units of time.
pub(super) fn case(
    steps: impl Strategy<Value = Vec<Draft>, Tree: Send> + Send + Sync,
    windows: &'static [u64],
    units: &'static [u64],
) -> impl Strategy<Value = Case, Tree: Send> {
    let limiters = prop_oneof![1 => Just(Vec::new()), 15 => Just(LIMITERS.to_vec())];
    // Usually today, sometimes at the epoch or near the largest timestamp.
    let last = Timestamp::MAX.as_micros() - 150;
    let start = prop_oneof![6 => Just(START), 1 => Just(0), 1 => Just(last)];
    let drafts = policies::drafts(windows, 3);
    // A value shrinks part by part: with all steps, more policies fail.
    (drafts, steps, limiters, start, any::<bool>(), select(units)).prop_map(
        |(drafts, steps, limiters, start, is_exact, unit)| {
            let policies = policies::of(&drafts, unit, is_exact);
            Case {
                steps: resolved(steps, &policies, unit),
                policies,
                limiters,
                start,
            }
        },
    )
}

/// Gives the steps their times, costs and receipts.
fn resolved(drafts: Vec<Draft>, policies: &[Policy], unit: u64) -> Vec<Step> {
    let limits = policies.iter().flat_map(Policy::limits);
    let windows: Vec<i64> = limits
        .map(|limit| limit.window().as_micros() as i64)
        .collect();
    let mut steps: Vec<Step> = Vec::new();
    // The tags, steps and ids of the entries that may have a receipt.
    let mut appends: Vec<(u8, usize, Option<CaseId>)> = Vec::new();
    for (number, (mut step, after, tag)) in drafts.into_iter().enumerate() {
        step.policy %= policies.len() as u8;
        let max = policies[usize::from(step.policy)].smallest_max();
        // Costs above the maximum are all refused in the same way.
        if step.cost > max + 1 && step.cost < u64::MAX {
            step.cost = 1 + step.cost % (max + 1);
        }
        let issuer = |tag: usize| {
            let mut tagged = appends.iter().rev();
            let found = tagged.find(|append| usize::from(append.0) == tag);
            found.or(appends.last()).copied()
        };
        match step.verb {
            Verb::Settle(of) | Verb::Renew(of) => match (issuer(of), step.verb) {
                (Some((_, issuer, _)), Verb::Settle(_)) => step.verb = Verb::Settle(issuer),
                (Some((_, issuer, id)), _) => {
                    step.verb = Verb::Renew(issuer);
                    step.id = step.id.and(id);
                    // So that renewals are renewed.
                    appends.push((tag, number, id));
                }
                (None, _) => step = Step::new(Verb::Run(Mode::Acquire), 1),
            },
            Verb::Run(_) | Verb::Reset => {}
        }
        if let Verb::Run(Mode::Acquire | Mode::Record) = step.verb {
            appends.push((tag, number, step.id));
        }
        step.after = match after {
            After::Micros(micros) => micros,
            After::Window(of, sign, more) => sign * windows[of % windows.len()] + more,
            After::Units(units, more) => units * unit as i64 + (more % unit) as i64,
        };
        let runs = |step: &Step| matches!(step.verb, Verb::Run(_));
        step.joint.with_previous &= runs(&step) && steps.last().is_some_and(runs);
        if step.joint.with_previous {
            step.after = 0;
        }
        steps.push(step);
    }
    steps
}
