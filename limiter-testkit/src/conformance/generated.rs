//! Generated sequences: every short one, and random ones.

use limiter_core::store::Mode;
use limiter_core::{Name, Policy};

use super::case::{Case, CaseId, Step, Verb};
use super::mismatch::Mismatch;
use super::policies::{START, limit, policy, resolved};
use super::random::{self, Random};
use super::session::Session;
use super::suite::run::Run;

/// The number of failing sequences that are shrunk.
const MAX_SHRUNK: usize = 3;

pub(crate) async fn exhaustive(run: &mut Run<'_>) {
    let (depth, one_in) = (run.suite.sizes.depth, run.suite.sizes.one_in);
    let mut number = run.suite.seed % one_in;
    for policy in short_policies() {
        for case in short_sequences(&policy, depth) {
            number += 1;
            if number.is_multiple_of(one_in) {
                let result = sequence(run, &case).await;
                run.check(result);
            }
        }
    }
}

/// Runs a case on new keys, with new ids.
async fn sequence(run: &mut Run<'_>, case: &Case) -> Result<(), Mismatch> {
    let turn = run.report.checks_of(run.phase) as usize;
    let mut session = Session::new(run, case, turn);
    let store_keys = &mut session.caller.store_keys;
    match turn % 8 {
        // The empty key, with names that no other run uses.
        3 => {
            let name = run.new_name();
            store_keys.names = ["", ":2"]
                .map(|end| Name::new(&format!("{name}{end}")))
                .to_vec();
            store_keys.keys.insert(0, Vec::new());
        }
        7 => store_keys.names = ["default", "conformance"].map(Name::new).to_vec(),
        _ => {}
    }
    let result = session.replay(case).await;
    run.count(session.calls());
    result
        .map(drop)
        .map_err(|mismatch| mismatch.titled("a sequence"))
}

pub(crate) async fn random(run: &mut Run<'_>) {
    let (mut random, mut failed) = (Random(run.suite.seed), 0);
    for number in 0..run.suite.sizes.sequences {
        let case = match number % 20 {
            // A few sequences are long, because a store may encode large logs differently.
            19 => random::case(&mut random, 60..=200),
            4 | 9 | 14 => random::traffic(&mut random),
            _ => random::case(&mut random, 1..=30),
        };
        let mut result = sequence(run, &case).await;
        if let Err(mismatch) = result {
            failed += 1;
            result = Err(if failed <= MAX_SHRUNK {
                shrunk(run, case, mismatch).await
            } else {
                mismatch
            });
        }
        run.check(result.map_err(|mut mismatch| {
            mismatch.title = format!("random sequence {number}, {}", mismatch.title);
            mismatch
        }));
    }
}

/// Shrinks a failing case: removes ever fewer steps together until every step is needed, and makes the others simpler.
async fn shrunk(run: &mut Run<'_>, mut smallest: Case, mut mismatch: Mismatch) -> Mismatch {
    let (mut runs, most) = (0, run.suite.sizes.shrinking);
    let mut width = smallest.steps.len();
    while width > 0 && runs < most {
        let (mut end, mut has_shrunk) = (smallest.steps.len(), false);
        while end > 0 && runs < most {
            let begin = end.saturating_sub(width);
            let mut others = vec![smallest.without(|step| (begin..end).contains(&step))];
            if width == 1 {
                others.extend(simpler(&smallest, begin));
            }
            for case in others {
                runs += 1;
                if let Err(smaller) = sequence(run, &case).await {
                    (smallest, mismatch, has_shrunk) = (case, smaller, true);
                    break;
                }
            }
            end = begin.min(smallest.steps.len());
        }
        if !has_shrunk || width > 1 {
            width /= 2;
        }
    }
    mismatch.title = format!("shrunk to {} steps in {runs} runs", smallest.steps.len());
    mismatch
}

/// Returns cases in which one step has a smaller cost, no id, or no time before it.
fn simpler(case: &Case, step: usize) -> Vec<Case> {
    let changes: [fn(&mut Step); 3] = [
        |step| step.cost = step.cost.min(1),
        |step| step.id = None,
        |step| step.after = 0,
    ];
    let changed = |change: fn(&mut Step)| {
        let mut other = case.clone();
        change(&mut other.steps[step]);
        other
    };
    let all = changes.map(changed).into_iter();
    all.filter(|other| other != case).collect()
}

/// The policies that every short sequence runs under.
fn short_policies() -> Vec<Policy> {
    let (one, two, three) = (limit(1, 1), limit(2, 10), limit(3, 10));
    vec![
        policy(&[one], false),
        policy(&[three], false),
        policy(&[three], true),
        policy(&[two, limit(3, 11)], false),
        policy(&[limit(4, 10), limit(3, 9)], true),
        policy(&[resolved(three, 10)], false),
        policy(&[limit(3, 9), resolved(limit(4, 20), 10)], false),
    ]
}

/// Returns every sequence of `depth` operations, at most 4, under `policy`. The first operation finds an empty log, so its time is
/// irrelevant and it never settles.
fn short_sequences(policy: &Policy, depth: usize) -> impl Iterator<Item = Case> + Send {
    let (max, window) = (
        policy.smallest_max(),
        policy.longest_window().as_micros() as i64,
    );
    let (acquire, record) = (Verb::Run(Mode::Acquire), Verb::Run(Mode::Record));
    let mut firsts = vec![
        Step::new(acquire, 1),
        Step::new(acquire, 2),
        Step::new(acquire, max),
        Step::new(acquire, max + 1),
        Step {
            id: Some(CaseId::Fresh(7)),
            ..Step::new(acquire, 1)
        },
        Step::new(record, 1),
        Step::new(record, max + 1),
        Step::new(Verb::Run(Mode::Peek), max),
        Step::new(Verb::Reset, 0),
    ];
    // The maximum may be 1 or 2.
    let mut seen = Vec::new();
    firsts.retain(|step| {
        let is_new = !seen.contains(step);
        seen.push(*step);
        is_new
    });
    let mut others = firsts.clone();
    others.extend([(0, 0), (0, 2)].map(|(step, cost)| Step::new(Verb::Settle(step), cost)));
    // From the third step on, the receipt of the second step can be settled.
    others.extend((depth > 2).then_some(Step::new(Verb::Settle(1), 0)));
    let mut times = vec![0, 1, window - 1, window, window + 1, -1];
    times.sort_unstable();
    times.dedup();
    let later: Vec<Step> = times
        .iter()
        .flat_map(|&after| others.iter().map(move |step| Step { after, ..*step }))
        .collect();
    let (policies, depth) = (vec![policy.clone()], depth.min(4) as u32);
    let count = match depth.checked_sub(1) {
        Some(more) => firsts.len() * later.len().pow(more),
        None => 0,
    };
    (0..count).map(move |number| {
        let mut rest = number / firsts.len();
        let mut steps = vec![firsts[number % firsts.len()]];
        for _ in 1..depth {
            steps.push(later[rest % later.len()]);
            rest /= later.len();
        }
        Case {
            policies: policies.clone(),
            start: START,
            steps,
            ..Case::default()
        }
    })
}
