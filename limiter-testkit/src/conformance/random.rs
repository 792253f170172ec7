//! Random sequences.

use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::{Config, Reason, RngAlgorithm, TestRng, TestRunner};

use super::mismatch::Mismatch;
use super::session::Session;
use super::suite::run::Run;
use crate::case::Case;
use crate::strategy;

/// The number of failing sequences that are shrunk.
const MAX_SHRUNK: usize = 3;
/// The maximum number of runs to shrink one.
const MAX_RUNS: usize = 1_000;

/// Runs a case on new keys, with new ids.
async fn sequence(run: &mut Run<'_>, case: &Case) -> Result<u64, Mismatch> {
    let turn = run.report.checks_of(run.phase) as usize;
    let mut session = Session::new(run, case, turn);
    let result = session.replay(case).await;
    result.map_err(|mismatch| mismatch.titled("a sequence"))
}

pub(crate) async fn run(run: &mut Run<'_>) {
    let made = |number: u64, runner: &mut TestRunner| match number % 20 {
        // A few sequences are long, because a store may encode large logs differently.
        19 => strategy::cases(60..=200).new_tree(runner),
        4 | 9 | 14 => strategy::cases(20..=60).new_tree(runner),
        _ => strategy::cases(1..=30).new_tree(runner),
    };
    sequences(run, run.suite.sizes.sequences, made).await;
}

/// Runs random sequences. The suite's seed and its number determine each.
pub(super) async fn sequences<T: ValueTree<Value = Case> + Send>(
    run: &mut Run<'_>,
    count: u64,
    made: impl Fn(u64, &mut TestRunner) -> Result<T, Reason>,
) {
    let mut failed = 0;
    for number in 0..count {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&run.suite.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&number.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut tree = match made(
            number,
            &mut TestRunner::new_with_rng(Config::default(), rng),
        ) {
            Ok(tree) => tree,
            Err(reason) => {
                return run.fail(Mismatch::new("a strategy", &[], reason.to_string()));
            }
        };
        let mut result = sequence(run, &tree.current()).await;
        if let Err(mismatch) = &mut result {
            failed += 1;
            if failed <= MAX_SHRUNK {
                shrink(run, &mut tree, mismatch).await;
            }
        }
        run.check(result.map_err(|mut mismatch| {
            mismatch.title = format!("random sequence {number}, {}", mismatch.title);
            mismatch
        }));
    }
}

/// Shrinks a failing case.
async fn shrink(
    run: &mut Run<'_>,
    tree: &mut impl ValueTree<Value = Case>,
    mismatch: &mut Mismatch,
) {
    let mut smallest = tree.current();
    let mut runs = 0;
    let mut is_next = tree.simplify();
    while is_next && runs < MAX_RUNS {
        runs += 1;
        let case = tree.current();
        is_next = match sequence(run, &case).await {
            Err(smaller) => {
                (smallest, *mismatch) = (case, smaller);
                tree.simplify()
            }
            Ok(_) => tree.complicate(),
        };
    }
    mismatch.is_shrunk = true;
    mismatch.title = format!("shrunk to {} steps in {runs} runs", smallest.steps.len());
    let text = mismatch.text.trim_end();
    mismatch.text = format!("{text}\n\nas a script:\n{smallest}");
}
