//! The suite finds every flaw in a phase that always finds it, and the failure cites the sentence.
//!
//! With the environment variable `LIMITER_TEST_ALL`, every flaw must be found ten times, each time with another seed, and the
//! stores without a flaw run the largest suite.

use std::time::Duration;

use futures::executor::block_on;
use limiter_testkit::conformance::Phase::{Cases, Contention, Golden, Handles, Random};
use limiter_testkit::conformance::{Failure, Phase, Report, Suite};

use crate::flawed::{FLAWS, Flaw, RIGHT, StoreUnderTest};

/// Returns the flaw with this name.
fn named(name: &str) -> &'static Flaw {
    FLAWS
        .iter()
        .find(|flaw| flaw.name == name)
        .unwrap_or_else(|| panic!("there is no flaw {name}"))
}

/// Runs the suite on all handles of a store, with its sweep and with a handle that is opened late.
fn run(suite: Suite, flaw: &'static Flaw) -> Result<Report, Failure> {
    let StoreUnderTest {
        handles,
        late,
        sweep,
    } = StoreUnderTest::new(flaw);
    block_on(
        suite
            .sweep(move || sweep())
            .run_handles(handles, async { late() }),
    )
}

/// Returns `true` if the long tests run.
fn is_long() -> bool {
    std::env::var_os("LIMITER_TEST_ALL").is_some()
}

fn found(flaw: &'static Flaw, phase: Phase) -> Option<Failure> {
    run(Suite::new().phases(&[phase]), flaw).err()
}

/// Returns what is wrong if the phase misses the flaw, or if the failure does not print the sentence.
fn missed(flaw: &'static Flaw) -> Option<String> {
    let Flaw {
        phase,
        sentence,
        name,
        ..
    } = flaw;
    let Some(failure) = found(flaw, *phase) else {
        return Some(format!("{phase:?} does not find {name}"));
    };
    let is_shown = failure
        .to_string()
        .contains(&format!("\n{}: ", sentence.label()));
    (!is_shown).then(|| {
        format!(
            "{name} breaks {}, but the failure is about {:?}",
            sentence.label(),
            failure.sentences()
        )
    })
}

#[test]
fn every_flaw_is_found_and_the_failure_names_the_sentence() {
    // Most phases sleep more than they compute.
    const THREADS: usize = 8;
    let flaws: Vec<&Flaw> = std::iter::repeat_n(FLAWS, if is_long() { 10 } else { 1 })
        .flatten()
        .collect();
    let missed: Vec<String> = std::thread::scope(|scope| {
        let part = |i| {
            flaws
                .iter()
                .copied()
                .skip(i)
                .step_by(THREADS)
                .filter_map(missed)
                .collect::<Vec<_>>()
        };
        let parts: Vec<_> = (0..THREADS).map(|i| scope.spawn(move || part(i))).collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    });
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn passes(store: &'static Flaw) {
    let suite = if is_long() {
        Suite::new().sizes(|sizes| (sizes.long_log, sizes.long_log_time) = (300, Duration::MAX))
    } else {
        Suite::slow()
    };
    let report = run(suite, store).unwrap_or_else(|failure| panic!("{}\n{failure}", store.name));
    assert!(report.calls > 10_000, "{report:?}");
}

/// `scripts/mutants` runs this test on every mutation of core's `Log`.
#[test]
fn a_store_of_logs_passes() {
    passes(&RIGHT[0]);
}

#[test]
fn a_store_that_takes_steps_passes() {
    passes(&RIGHT[1]);
}

/// A failure shows the preceding calls, both answers, and the differences.
#[test]
fn a_failure_shows_the_golden_trace() {
    let text = found(named("IgnoresWeights"), Golden).unwrap().to_string();
    let first = text
        .split("\n\n")
        .find(|part| part.contains("golden trace"))
        .unwrap();
    assert!(
        first.contains("\n> ") && first.contains("expected"),
        "{text}"
    );
    assert!(
        first
            .lines()
            .any(|line| line.trim_start().starts_with("used: ") && line.ends_with("<--")),
        "{text}"
    );
}

#[test]
fn a_random_sequence_is_shrunk_until_every_step_is_needed() {
    for (flaw, steps) in [("IgnoresWeights", 1), ("RefundsWhatHasLeft", 2)] {
        for seed in 0..3 {
            let suite = Suite::new()
                .seed(seed)
                .sizes(|sizes| sizes.sequences = 200)
                .phases(&[Random]);
            let text = run(suite, named(flaw)).unwrap_err().to_string();
            assert!(
                text.contains(&format!("shrunk to {steps} steps")),
                "{flaw} {text}"
            );
        }
    }
}

#[test]
fn a_failure_under_contention_says_that_tasks_overlapped() {
    for (store, phase) in [
        (named("ChecksThenAdds"), Contention),
        (named("HidesItsLock"), Handles),
    ] {
        let text = found(store, phase).unwrap().to_string();
        assert!(text.contains("two tasks overlapped"), "{text}");
    }
}

#[test]
fn every_failing_case_is_counted_and_ten_are_shown() {
    let failure = found(named("IgnoresIds"), Cases).unwrap();
    let text = failure.to_string();
    assert!(
        failure.count() > 20
            && text.starts_with(&format!("Cases: {} failing cases", failure.count())),
        "{text}"
    );
    assert!(
        text.contains("\n10) ") && text.contains(&format!("\nand {} more\n", failure.count() - 10)),
        "{text}"
    );
    assert!(
        text.ends_with("run this phase alone with Suite::phases(&[Phase::Cases])"),
        "{text}"
    );
}
