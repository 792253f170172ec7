//! The suite finds every flaw in a phase that always finds it, and the failure cites the sentence.
//!
//! With the environment variable `LIMITER_TEST_ALL`, every flaw must be found ten times, each time with another seed, and the
//! stores without a flaw run the largest suite.

use std::sync::Arc;
use std::time::Duration;

use futures::executor;
use limiter_core::BoxFuture;
use limiter_core::store::LogKey;
use limiter_testkit::conformance::__private::block_on;
use limiter_testkit::conformance::Phase::{Cases, Contention, Golden, Random, Several, StoreClock};
use limiter_testkit::conformance::{Case, Failure, Phase, Report, Suite, replay};
use limiter_testkit::strategy;
use proptest::strategy::Strategy as _;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::flawed::{FLAWS, Flaw, Flawed, RIGHT};

/// Runs the suite on two handles of a store, with its sweep and with a handle that is opened late.
fn run(suite: Suite, flaw: Flaw) -> Result<Report, Failure> {
    let store = Flawed::new(flaw);
    let sweeper = store.clone();
    let sweep = move || -> BoxFuture<'static, ()> {
        let sweeper = sweeper.clone();
        Box::pin(async move { sweeper.sweep().await })
    };
    let damaged = store.clone();
    let damage = move |log: LogKey<'_>| -> BoxFuture<'static, ()> {
        damaged.damage(log);
        Box::pin(async {})
    };
    let suite = suite.sweep(sweep).damage(damage);
    let suite = suite.beside(Arc::new(Flawed::new(flaw)));
    let handles = [0, 1].map(|number| Arc::new(store.handle(number)));
    block_on(suite.run_handles(handles.to_vec(), async { Arc::new(store.handle(2)) }))
}

/// Returns `true` if the long tests run.
fn is_long() -> bool {
    std::env::var_os("LIMITER_TEST_ALL").is_some()
}

fn named(name: &str) -> Flaw {
    *FLAWS.iter().find(|flaw| flaw.2 == name).unwrap()
}

/// Returns the text of the failure of a phase.
fn found(name: &str, phase: Phase) -> String {
    let failure = run(Suite::new().phases(&[phase]), named(name)).unwrap_err();
    failure.to_string()
}

#[test]
fn every_flaw_is_found_and_the_failure_names_the_sentence() {
    // Most phases sleep more than they compute.
    const THREADS: usize = 8;
    let flaws = std::iter::repeat_n(FLAWS, if is_long() { 10 } else { 1 });
    let flaws: Vec<&Flaw> = flaws.flatten().collect();
    let missed = |flaw: &&Flaw| {
        let (phase, sentence, name) = **flaw;
        let Err(failure) = run(Suite::new().phases(&[phase]), **flaw) else {
            return Some(format!("{phase:?} does not find {name}"));
        };
        let label = sentence.label();
        let cites = failure.to_string().contains(&format!("\n{label}: "));
        let cited = failure.sentences();
        (!cites).then(|| format!("{name} breaks {label}, but the failure is about {cited:?}"))
    };
    let missed: Vec<String> = std::thread::scope(|scope| {
        let part = |i| {
            let flaws = flaws.iter().copied().skip(i).step_by(THREADS);
            let missed = flaws.filter_map(|flaw| missed(&flaw));
            missed.collect::<Vec<_>>()
        };
        let parts: Vec<_> = (0..THREADS).map(|i| scope.spawn(move || part(i))).collect();
        let parts = parts.into_iter();
        parts.flat_map(|part| part.join().unwrap()).collect()
    });
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn passes(store: Flaw) {
    let suite = if is_long() {
        Suite::new().sizes(|sizes| (sizes.long_log, sizes.long_log_time) = (300, Duration::MAX))
    } else {
        Suite::slow()
    };
    let report = run(suite, store).unwrap_or_else(|failure| panic!("{store:?}\n{failure}"));
    assert!(report.calls > 10_000, "{report:?}");
}

/// `scripts/mutants` runs this test on every mutation of core's `Log`.
#[test]
fn a_store_of_logs_passes() {
    passes(RIGHT[0]);
}

#[test]
fn a_store_that_takes_steps_passes() {
    passes(RIGHT[1]);
}

#[test]
fn a_store_that_cannot_apply_some_operations_as_one_passes() {
    passes(RIGHT[2]);
}

#[test]
fn a_store_that_pauses_may_forget_a_log_meanwhile() {
    let suite = Suite::new().phases(&[Several]);
    let report = run(suite, RIGHT[3]).unwrap();
    assert!(report.calls > 1_000, "{report:?}");
}

/// A failure shows the preceding calls, both results, and the differences.
#[test]
fn a_failure_shows_what_went_wrong() {
    let text = found("IgnoresWeights", Golden);
    let mut parts = text.split("\n\n");
    let first = parts.find(|part| part.contains("golden trace")).unwrap();
    let shows = |what: &dyn Fn(&str) -> bool| assert!(first.lines().any(what), "{text}");
    shows(&|line| line.starts_with("> "));
    shows(&|line| line.trim_start().starts_with("used: ") && line.ends_with("<--"));

    let text = found("HidesItsLock", Contention);
    assert!(text.contains("two tasks overlapped"), "{text}");

    // One task fails, too, and an error is printed whole.
    let text = found("CannotBeReached", Several);
    assert!(text.contains(": 3 bytes, expected 16, or more"), "{text}");
    assert!(text.lines().count() < 40, "{text}");

    let text = found("IgnoresWeights", Cases);
    assert!(
        text.contains("\n10) ") && text.contains(" more\n"),
        "{text}"
    );
    let end = "run this phase alone with Suite::phases(&[Phase::Cases]) and Suite::seed(";
    assert!(text.contains(end), "{text}");
}

/// Shrinks to a few steps and limits, in a suite and in a property test of a user.
#[test]
fn a_failing_sequence_is_shrunk() {
    for seed in 0..3 {
        let suite = Suite::new().seed(seed).phases(&[Random]);
        let text = run(suite, named("IgnoresWeights")).unwrap_err().to_string();
        assert!(text.contains("shrunk to 1 steps"), "{text}");
    }
    for (name, phase) in [
        ("RefundsWhatHasLeft", Random),
        ("JoinsUnderTheFirstName", Several),
    ] {
        let cases = match phase {
            Several => strategy::joint_cases(1..=30).boxed(),
            _ => strategy::cases(1..=30).boxed(),
        };
        let fails = |case: Case| {
            let store = Arc::new(Flawed::new(named(name)));
            let result = executor::block_on(replay(&store, &case, |key| vec![key]));
            result.map_err(|mismatch| TestCaseError::fail(mismatch.to_string()))
        };
        for seed in 0..if is_long() { 20 } else { 3 } {
            let config = Config {
                cases: 5_000,
                max_shrink_iters: 5_000,
                failure_persistence: None,
                ..Config::default()
            };
            let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
            let ran = TestRunner::new_with_rng(config, random).run(&cases, fails);
            let Err(TestError::Fail(reason, case)) = ran else {
                panic!("{name} passes");
            };
            let limits = case.policies.iter().map(|policy| policy.limits().len());
            let is_small = case.steps.len() <= 8 && limits.sum::<usize>() <= 3;
            assert!(is_small, "{name}, seed {seed}: {reason}\n{case}");
            // What is printed fails again.
            let read: Case = case.to_string().parse().unwrap();
            assert!(fails(read).is_err(), "{case}");
        }
    }
}

/// The README's example of a failure is what the suite prints about its script.
#[test]
fn the_readme_shows_what_a_failure_prints() {
    let mut blocks = include_str!("../../README.md").split("```");
    let example = blocks.find(|block| block.starts_with("text\nRandom: "));
    let (shown, script) = example.unwrap().split_once("as a script:\n").unwrap();
    let case: Case = script.parse().unwrap();
    assert_eq!(case.to_string(), script.trim_end());
    let store = Arc::new(Flawed::new(named("RefundsWhatHasLeft")));
    let failure = executor::block_on(replay(&store, &case, |key| vec![key]));
    let failure = failure.unwrap_err().to_string();
    let mut lines = failure.lines();
    // Above, there is what the phase says.
    let shown = shown.lines().skip_while(|line| !line.starts_with("S4: "));
    for line in shown.map(|line| line.trim_end_matches([' ', '…'])) {
        let is_shown = lines.any(|printed| printed.starts_with(line));
        assert!(is_shown, "{line}\n{failure}");
    }
}

#[test]
fn a_call_that_does_not_return_ends_the_run() {
    let suite = Suite::new().phases(&[Golden]);
    let suite = suite.sizes(|sizes| sizes.call = Duration::from_millis(50));
    let failure = run(suite, (Golden, RIGHT[0].1, "NeverReturns")).unwrap_err();
    let text = failure.to_string();
    assert!(
        text.contains("\nC2: ") && text.contains("did not return within 50ms"),
        "{text}"
    );
}

/// Every failure cites sentences, and those of a calm store no task.
#[test]
fn a_failure_cites_what_may_be_wrong() {
    for (name, phase, text) in [
        ("IgnoresWeights", Golden, "\nL3: "),
        ("IgnoresWeights", Random, "\nL2: "),
        ("WaitsFromNewest", StoreClock, "\nT3: "),
        ("IgnoresWeights", Contention, "one task: "),
        ("NamesAnotherNodeEachTime", Cases, "the node of a log"),
    ] {
        let flaw = (phase, RIGHT[0].1, name);
        let failure = run(Suite::new().phases(&[phase]), flaw).unwrap_err();
        assert!(failure.to_string().contains(text), "{name} {failure}");
    }
}
