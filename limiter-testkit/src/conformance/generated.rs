//! Generated sequences: every short one, and random ones.

mod exhaustive;
mod traffic;

use limiter_core::Name;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::conformance::sequence::case::Case;
use crate::conformance::sequence::mismatch::Mismatch;
use crate::conformance::session::Session;
use crate::conformance::strategy;
use crate::conformance::suite::run::Run;

/// The number of failing sequences that are shrunk.
const MAX_SHRUNK: usize = 3;

pub(crate) async fn exhaustive(run: &mut Run<'_>) {
    let (depth, one_in) = (run.suite.sizes.depth, run.suite.sizes.one_in);
    let mut number = run.suite.seed % one_in;
    for policy in exhaustive::policies() {
        for case in exhaustive::sequences(&policy, depth) {
            number += 1;
            if !number.is_multiple_of(one_in) {
                continue;
            }
            match sequence(run, &case).await {
                Ok(()) => run.passed(1),
                Err(mismatch) => run.fail(mismatch),
            }
        }
    }
}

/// Runs a case on new keys, with new ids.
async fn sequence(run: &mut Run<'_>, case: &Case) -> Result<(), Mismatch> {
    let turn = run.report.checks_of(run.phase) as usize;
    let mut session = Session::new(run, case, turn);
    match turn % 8 {
        // The empty key, with names that no other run uses.
        3 => {
            let name = run.new_name();
            let names = ["", ":2"].map(|end| Name::new(&format!("{name}{end}")));
            session.name(names, Some(Vec::new()));
        }
        7 => session.name(["default", "conformance"].map(Name::new), None),
        _ => {}
    }
    let result = session.replay(case).await;
    run.count(session.calls());
    result
        .map(drop)
        .map_err(|mismatch| mismatch.titled("a sequence"))
}

pub(crate) async fn random(run: &mut Run<'_>) {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&run.suite.seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (short, long, traffic) = (
        strategy::cases(1..=30),
        strategy::cases(60..=200),
        traffic::traffic(),
    );
    let mut failed = 0;
    for number in 0..run.suite.sizes.sequences {
        let shrinks = failed < MAX_SHRUNK;
        let result = match number % 20 {
            // A few sequences are long, because a store may encode large logs differently.
            19 => random_case(run, &long, &mut runner, shrinks).await,
            4 | 9 | 14 => random_case(run, &traffic, &mut runner, shrinks).await,
            _ => random_case(run, &short, &mut runner, shrinks).await,
        };
        match result {
            Ok(()) => run.passed(1),
            Err(mut mismatch) => {
                failed += 1;
                mismatch.title = format!("random sequence {number}, {}", mismatch.title);
                run.fail(mismatch);
            }
        }
    }
}

async fn random_case(
    run: &mut Run<'_>,
    strategy: &impl Strategy<Value = Case>,
    runner: &mut TestRunner,
    shrinks: bool,
) -> Result<(), Mismatch> {
    let tree = strategy
        .new_tree(runner)
        .map_err(|reason| Mismatch::new("not made", &[], reason.to_string()))?;
    let case = tree.current();
    match sequence(run, &case).await {
        Err(first) if shrinks => Err(shrunk(run, tree, case, first).await),
        result => result,
    }
}

/// Shrinks a failing case, then removes steps until every remaining step is needed.
async fn shrunk(
    run: &mut Run<'_>,
    mut tree: impl ValueTree<Value = Case>,
    mut smallest: Case,
    mut mismatch: Mismatch,
) -> Mismatch {
    let (mut runs, most) = (0, run.suite.sizes.shrinking);
    let mut goes_on = tree.simplify();
    while goes_on && runs < most {
        let case = tree.current();
        let mut fails = case == smallest;
        if !fails {
            runs += 1;
            if let Err(smaller) = sequence(run, &case).await {
                (smallest, mismatch, fails) = (case, smaller, true);
            }
        }
        goes_on = if fails {
            tree.simplify()
        } else {
            tree.complicate()
        };
    }
    // Shrinking visits each step once, but a step may become superfluous later.
    let mut step = smallest.steps.len();
    while step > 0 && runs < 2 * most {
        step -= 1;
        let case = smallest.with_steps(|other| other != step);
        runs += 1;
        if let Err(smaller) = sequence(run, &case).await {
            (smallest, mismatch) = (case, smaller);
            step = smallest.steps.len();
        }
    }
    mismatch.title = format!("shrunk to {} steps in {runs} runs", smallest.steps.len());
    mismatch
}
