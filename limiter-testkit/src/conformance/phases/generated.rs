//! All short sequences, and random ones.

use limiter_core::WindowStore;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::conformance::generate::shrink::Shrinking;
use crate::conformance::generate::{exhaustive, strategy};
use crate::conformance::sequence::case::Case;
use crate::conformance::sequence::plan::Plan;
use crate::conformance::suite::{Finding, Findings, Run};

/// How many failing sequences are made smaller. The others are counted.
const SHRUNK: usize = 3;

pub(crate) async fn exhaustive<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let (depth, one_in) = (run.sizes().depth, run.sizes().one_in);
    let mut number = run.seed() % one_in;
    for policy in exhaustive::policies() {
        for case in exhaustive::sequences(&policy, depth) {
            number += 1;
            if !number.is_multiple_of(one_in) {
                continue;
            }
            match sequence(run, &case).await {
                Ok(()) => run.report.short_sequences += 1,
                Err(finding) => findings.push(*finding),
            }
        }
    }
}

/// Runs a case on new keys, with new ids.
async fn sequence<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, case: &Case) -> Result<(), Box<Finding>> {
    let plan = Plan::of(case).map_err(|text| Box::new(Finding::new("a sequence", &[], text)))?;
    let number = run.report.short_sequences as usize + run.report.random_sequences as usize;
    run.replay(&plan, number).await.map_err(|mismatch| Box::new(Finding::of("a sequence", mismatch)))
}

pub(crate) async fn random<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, findings: &mut Findings) {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&run.seed().to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (short, long) = (strategy::cases(1..=30), strategy::cases(60..=200));
    let mut failed = 0;
    for number in 0..run.sizes().sequences {
        // A few long ones, for logs that have grown beyond what a store may hold in another form.
        let tree = if number % 20 == 19 { long.new_tree(&mut runner) } else { short.new_tree(&mut runner) };
        let case = match tree {
            Ok(tree) => tree.current(),
            Err(reason) => return findings.push(Finding::new("a random sequence", &[], reason.to_string())),
        };
        let Err(first) = sequence(run, &case).await else {
            run.report.random_sequences += 1;
            continue;
        };
        failed += 1;
        if failed > SHRUNK {
            findings.more(1);
            continue;
        }
        let (mut smallest, tries) = shrunk(run, case, *first).await;
        smallest.title = format!("random sequence {number}, made smaller in {tries} runs");
        findings.push(smallest);
    }
}

/// Makes a failing case smaller for as long as it fails.
async fn shrunk<S: WindowStore + ?Sized>(run: &mut Run<'_, S>, case: Case, first: Finding) -> (Finding, usize) {
    let (mut tree, mut smallest) = (Shrinking::new(case), first);
    let (mut tries, mut go_on) = (0, tree.simplify());
    while go_on && tries < run.sizes().shrinking {
        tries += 1;
        go_on = match sequence(run, &tree.current()).await {
            Err(finding) => {
                smallest = *finding;
                tree.simplify()
            }
            Ok(()) => tree.complicate(),
        };
    }
    (smallest, tries)
}
