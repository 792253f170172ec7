//! The suite finds every flaw in a phase that always finds it, and the failure cites the sentence.
//!
//! With the environment variable `LIMITER_TEST_ALL`, every flaw must be found ten times, each time with another seed, and the
//! stores without a flaw run the largest suite.

use std::time::Duration;

use futures::executor::block_on;
use limiter_testkit::conformance::Phase::{Cases, Contention, Golden, Handles, Random};
use limiter_testkit::conformance::{Failure, Phase, Report, Suite};

use crate::flawed::{FLAWS, Flaw, RIGHT, StoreUnderTest};

/// Runs the suite on all handles of a store, with its sweep and with a handle that is opened late.
fn run(suite: Suite, flaw: Flaw) -> Result<Report, Failure> {
    let StoreUnderTest {
        handles,
        late,
        sweep,
    } = StoreUnderTest::new(flaw);
    let suite = suite.sweep(move || sweep());
    block_on(suite.run_handles(handles, async { late() }))
}

/// Returns `true` if the long tests run.
fn is_long() -> bool {
    std::env::var_os("LIMITER_TEST_ALL").is_some()
}

/// Returns the text of the failure of a phase.
fn found(name: &str, phase: Phase) -> String {
    let flaw = *FLAWS.iter().find(|flaw| flaw.2 == name).unwrap();
    let failure = run(Suite::new().phases(&[phase]), flaw).unwrap_err();
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

/// A failure shows the preceding calls, both results, and the differences.
#[test]
fn a_failure_shows_what_went_wrong() {
    let text = found("IgnoresWeights", Golden);
    let mut parts = text.split("\n\n");
    let first = parts.find(|part| part.contains("golden trace")).unwrap();
    let shows = |what: &dyn Fn(&str) -> bool| assert!(first.lines().any(what), "{text}");
    shows(&|line| line.starts_with("> "));
    shows(&|line| line.trim_start().starts_with("used: ") && line.ends_with("<--"));

    for (flaw, phase) in [("ChecksThenAdds", Contention), ("HidesItsLock", Handles)] {
        let text = found(flaw, phase);
        assert!(text.contains("two tasks overlapped"), "{text}");
    }

    let text = found("IgnoresIds", Cases);
    assert!(
        text.contains("\n10) ") && text.contains(" more\n"),
        "{text}"
    );
    let end = "run this phase alone with Suite::phases(&[Phase::Cases]) and Suite::seed(";
    assert!(text.contains(end), "{text}");
}

#[test]
fn a_random_sequence_is_shrunk_until_every_step_is_needed() {
    for (name, steps) in [("IgnoresWeights", 1), ("RefundsWhatHasLeft", 2)] {
        for seed in 0..3 {
            let suite = Suite::new().seed(seed).phases(&[Random]);
            let flaw = *FLAWS.iter().find(|flaw| flaw.2 == name).unwrap();
            let text = run(suite, flaw).unwrap_err().to_string();
            let shrunk = format!("shrunk to {steps} steps");
            assert!(text.contains(&shrunk), "{name} {text}");
        }
    }
}
