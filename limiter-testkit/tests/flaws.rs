//! The suite finds every flaw in a phase that always finds it, and the failure names the sentence.

mod flawed;

use std::collections::HashSet;

use flawed::{Flaw, ForgetRule, LeftBehind, ListStore, PrivateState, SixteenBitStore, Stepwise, StoreUnderTest};
use limiter_testkit::conformance::Phase::{Cancel, Cases, Contention, Forgetting, Golden, Handles, LongLog, Random};
use limiter_testkit::conformance::Sentence::{C1, C2, F1, F2, L12, L14};
use limiter_testkit::conformance::{Failure, Phase, Sentence, Suite};

/// A flaw, a phase that always finds it, and the sentence that it breaks.
type Row = (FlawedStore, Phase, Sentence);

/// A store with a flaw.
#[derive(Clone, Copy, Debug)]
enum FlawedStore {
    List(Flaw),
    Forgetful(ForgetRule),
    Handles(PrivateState),
    Steps(LeftBehind),
    CountsIn16Bits,
}

impl FlawedStore {
    fn under_test(self) -> StoreUnderTest {
        match self {
            Self::List(flaw) => StoreUnderTest::of(ListStore::new(flaw)),
            Self::Forgetful(rule) => StoreUnderTest::forgetful(rule),
            Self::Handles(private) => StoreUnderTest::two_handles(private),
            Self::Steps(left_behind) => StoreUnderTest::of(Stepwise::new(left_behind)),
            Self::CountsIn16Bits => StoreUnderTest::of(SixteenBitStore::default()),
        }
    }
}

/// The flaws of the other stores.
const OTHERS: &[Row] = &[
    (FlawedStore::CountsIn16Bits, LongLog, L14),
    (FlawedStore::Handles(PrivateState::ItsLock), Handles, L12),
    (FlawedStore::Handles(PrivateState::ItsLogs), Handles, L12),
    (FlawedStore::Handles(PrivateState::ItsDenials), Handles, L12),
    (FlawedStore::Handles(PrivateState::ItsIds), Handles, L12),
    (FlawedStore::Forgetful(ForgetRule::ByTheFirstWindow), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::ByTheOwnWindow), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::ByTheDefaultWindow), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::AfterWholeSeconds), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::AfterTheFirstAppend), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::AfterTheLastOperation), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::AfterAPeek), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::AfterASettlement), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::WindowAfterTheClock), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::WhenThereAreMany), Forgetting, F1),
    (FlawedStore::Forgetful(ForgetRule::GivenTimesAsItsOwn), Forgetting, F2),
    (FlawedStore::Forgetful(ForgetRule::GivenTimesAfterTheWindow), Forgetting, F2),
    (FlawedStore::Forgetful(ForgetRule::GivenTimesWhenItSweeps), Forgetting, F2),
    (FlawedStore::Steps(LeftBehind::HalfASettlement), Cancel, C1),
    (FlawedStore::Steps(LeftBehind::HalfAReset), Cancel, C1),
    (FlawedStore::Steps(LeftBehind::AnEntryWithoutItsId), Cancel, C1),
    (FlawedStore::Steps(LeftBehind::ItsLock), Cancel, C2),
];

fn rows() -> Vec<Row> {
    let lists = Flaw::ALL.iter().map(|(flaw, phase, sentence)| (FlawedStore::List(*flaw), *phase, *sentence));
    lists.chain(OTHERS.iter().copied()).collect()
}

fn suite(under_test: &StoreUnderTest) -> Suite {
    match under_test.sweep.clone() {
        Some(sweep) => Suite::new().sweep_with(move || sweep()),
        None => Suite::new(),
    }
}

fn found(store: FlawedStore, phase: Phase) -> Option<Failure> {
    let under_test = store.under_test();
    suite(&under_test).phases(&[phase]).run_handles_blocking(under_test.handles).err()
}

/// Returns what is wrong if the phase misses the flaw, or if the failure does not print the sentence.
fn missed((store, phase, sentence): Row) -> Option<String> {
    let Some(failure) = found(store, phase) else { return Some(format!("{phase:?} does not find {store:?}")) };
    let is_shown = failure.to_string().contains(&format!("\n{}: ", sentence.label()));
    (!is_shown)
        .then(|| format!("{store:?} breaks {}, but the failure is about {:?}", sentence.label(), failure.sentences()))
}

#[test]
fn every_flaw_is_found_and_the_failure_names_the_sentence() {
    const THREADS: usize = 4;
    let rows = rows();
    let missed: Vec<String> = std::thread::scope(|scope| {
        let part = |i| rows.iter().copied().skip(i).step_by(THREADS).filter_map(missed).collect::<Vec<_>>();
        let parts: Vec<_> = (0..THREADS).map(|i| scope.spawn(move || part(i))).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_sentence_has_a_flaw() {
    let store: HashSet<Sentence> = rows().into_iter().map(|(_, _, sentence)| sentence).collect();
    let missing: Vec<&Sentence> = Sentence::ALL.iter().filter(|sentence| !store.contains(sentence)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_stores_pass_without_their_flaws() {
    let right = [
        FlawedStore::List(Flaw::None),
        FlawedStore::Forgetful(ForgetRule::InTime),
        FlawedStore::Handles(PrivateState::Nothing),
        FlawedStore::Steps(LeftBehind::Nothing),
    ];
    for store in right {
        let under_test = store.under_test();
        let suite = suite(&under_test).long_log(300, std::time::Duration::MAX);
        let report =
            suite.run_handles_blocking(under_test.handles).unwrap_or_else(|failure| panic!("{store:?}\n{failure}"));
        assert!(report.operations > 10_000, "{report:?}");
    }
}

/// A failure shows the preceding calls, both answers, and the differences.
#[test]
fn a_failure_shows_the_golden_trace() {
    let text = found(FlawedStore::List(Flaw::CountsWhatIsAgedTheWindow), Golden).unwrap().to_string();
    let first = text.split("\n\n").nth(1).unwrap();
    let start =
        "1) golden trace \"usage counter\"\nL2: An entry counts in a window W at now if and only if now - at < W.\n";
    assert!(first.starts_with(start), "{text}");
    assert!(first.contains("\n> ") && first.contains("expected"), "{text}");
    assert!(first.lines().any(|line| line.trim_start().starts_with("used ") && line.ends_with("<--")), "{text}");
}

#[test]
fn a_random_sequence_is_shrunk_until_every_step_is_needed() {
    for (flaw, steps) in [(Flaw::NeverCaps, 2), (Flaw::RefundsWhatHasLeft, 2), (Flaw::SettlesWithoutTheId, 3)] {
        let under_test = FlawedStore::List(flaw).under_test();
        for seed in 0..3 {
            let suite = Suite::new().seed(seed).phases(&[Random]);
            let text = suite.run_handles_blocking(under_test.handles.clone()).unwrap_err().to_string();
            assert!(text.contains(&format!("shrunk to {steps} steps")), "{flaw:?} {text}");
        }
    }
}

#[test]
fn a_failure_under_contention_says_that_tasks_overlapped() {
    for (store, phase) in
        [(FlawedStore::List(Flaw::ChecksThenAdds), Contention), (FlawedStore::Handles(PrivateState::ItsLock), Handles)]
    {
        let text = found(store, phase).unwrap().to_string();
        assert!(text.contains("two tasks overlapped"), "{text}");
    }
}

#[test]
fn every_failing_case_is_counted_and_ten_are_shown() {
    let failure = found(FlawedStore::List(Flaw::IgnoresIds), Cases).unwrap();
    let text = failure.to_string();
    assert!(failure.count() > 20 && text.starts_with(&format!("Cases: {} failing cases", failure.count())), "{text}");
    assert!(text.contains("\n10) ") && text.contains(&format!("\nand {} more\n", failure.count() - 10)), "{text}");
    assert!(text.ends_with("run this phase alone with Suite::phases(&[Phase::Cases])"), "{text}");
}
