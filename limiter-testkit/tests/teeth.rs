//! The suite has teeth: no store with one flaw passes, and every part of the suite finds what it is there to find.

mod flawed;

use std::sync::Arc;

use flawed::{Flaw, FlawedStore};
use limiter_testkit::conformance::Phase::{Contention, Edges, Exhaustive, Golden, Random};
use limiter_testkit::conformance::{Phase, Suite};

/// Each flaw, and the parts of the suite that find it for certain when they run alone.
const FOUND_BY: [(Flaw, &[Phase]); 45] = [
    (Flaw::CountsWhatIsAgedTheWindow, &[Golden, Edges, Exhaustive, Random]),
    (Flaw::ForgetsAMicrosecondEarly, &[Golden, Edges, Exhaustive, Random]),
    (Flaw::AppendsDenied, &[Golden, Edges, Exhaustive, Random, Contention]),
    (Flaw::IgnoresWeights, &[Golden, Edges, Exhaustive, Random, Contention]),
    (Flaw::ChecksThenAdds, &[Contention]),
    (Flaw::LetsTimeRunBack, &[Golden, Edges, Exhaustive, Random]),
    (Flaw::LetsTimeRunBackOnceExpired, &[Edges, Exhaustive, Random]),
    (Flaw::ForgetsTheLastLimit, &[Golden, Exhaustive, Random]),
    (Flaw::RefundsTwice, &[Edges, Random, Contention]),
    (Flaw::RefundsANeighbour, &[Edges, Random, Contention]),
    (Flaw::RefundsByTimeAlone, &[Edges, Random, Contention]),
    (Flaw::RefundsWhatHasLeft, &[Exhaustive, Random]),
    (Flaw::IgnoresIds, &[Edges, Exhaustive, Random, Contention]),
    (Flaw::KeepsRefundedIds, &[Edges, Random]),
    (Flaw::RepeatsTheVerdictOfNow, &[Edges, Exhaustive, Random]),
    (Flaw::RepeatsForEver, &[Edges, Exhaustive, Random]),
    (Flaw::PeekAppends, &[Golden, Edges, Exhaustive, Random]),
    (Flaw::RecordAppendsOnlyIfItFits, &[Edges, Exhaustive, Random]),
    (Flaw::DropsTheAttemptsThatAreDenied, &[Golden, Edges, Exhaustive, Random, Contention]),
    (Flaw::ResetLeaves, &[Edges, Exhaustive, Random]),
    (Flaw::CapsOneTooMany, &[Golden, Edges, Exhaustive, Random, Contention]),
    (Flaw::NeverCaps, &[Edges, Random]),
    (Flaw::NeverTrims, &[Edges, Random]),
    (Flaw::TrimsByTheShortestWindow, &[Golden, Edges, Exhaustive, Random]),
    (Flaw::IgnoresSettlements, &[Edges, Exhaustive, Random]),
    (Flaw::SettlesAnew, &[Exhaustive, Random]),
    (Flaw::MergesTies, &[Golden, Edges, Exhaustive, Random, Contention]),
    (Flaw::FreesTheOldestFirst, &[Edges, Exhaustive, Random]),
    (Flaw::MixesUpKeys, &[Edges]),
    (Flaw::CutsKeys, &[Edges]),
    (Flaw::OverflowsCosts, &[Edges, Random]),
    (Flaw::AppliesWhatItDoesNotDecideAtOnce, &[Golden, Edges, Random]),
    (Flaw::IgnoresNames, &[Golden, Edges, Random]),
    (Flaw::JoinsNamesAndKeys, &[Edges]),
    (Flaw::IgnoresCaseOfNames, &[Edges]),
    (Flaw::RepeatsInTheOwnWindow, &[Edges, Random]),
    (Flaw::RetainsForTheOwnPolicy, &[Golden, Edges, Random]),
    (Flaw::RetainsForTheDefaultPolicy, &[Edges, Random]),
    (Flaw::RetainsTheOwnWindow, &[Golden, Edges, Random]),
    (Flaw::RetainsTheOwnMax, &[Edges, Random]),
    (Flaw::RetainsTheSmallerMax, &[Edges, Random]),
    (Flaw::SettlesWithTheUsageBefore, &[Edges, Exhaustive, Random]),
    (Flaw::SettlesWithTheUsageOfOneLimit, &[Exhaustive, Random]),
    (Flaw::SettlesAtTheReceiptsTime, &[Exhaustive, Random]),
    (Flaw::SettlesUnderTheDefaultName, &[Edges, Random]),
];

fn found_by(flaw: Flaw, phases: &[Phase]) -> Option<Phase> {
    let suite = Suite::new().seed(1).phases(phases);
    suite.run_blocking(Arc::new(FlawedStore::new(flaw))).err().map(|failure| failure.phase())
}

#[test]
fn without_its_flaw_the_store_conforms() {
    let report = Suite::new().run_blocking(Arc::new(FlawedStore::new(Flaw::None))).unwrap();
    assert_eq!(report.random_sequences, 1_000);
}

#[test]
fn one_call_finds_every_flaw() {
    for (flaw, phases) in FOUND_BY {
        assert_eq!(found_by(flaw, &Phase::ALL), Some(phases[0]), "{flaw:?}");
    }
}

#[test]
fn every_part_finds_its_flaws_alone() {
    for (flaw, phases) in FOUND_BY {
        for &phase in phases {
            assert_eq!(found_by(flaw, &[phase]), Some(phase), "{flaw:?}");
        }
    }
}

#[test]
fn a_failure_tells_the_whole_story() {
    let store = Arc::new(FlawedStore::new(Flaw::NeverCaps));
    let failure = Suite::new().seed(1).phases(&[Random]).run_blocking(store).unwrap_err();
    let story = failure.to_string();
    for part in ["Random: ", "shrunk in", "expected ", "got ", " under ", "Suite::seed(1)"] {
        assert!(story.contains(part), "{part:?} is missing in:\n{story}");
    }
    assert!(story.lines().count() < 20, "not shrunk:\n{story}");
}

#[test]
fn a_suite_that_runs_nothing_fails() {
    let store = Arc::new(FlawedStore::new(Flaw::None));
    for (suite, phase) in [
        (Suite::new().sequences(0), Random),
        (Suite::new().depth(0), Exhaustive),
        (Suite::new().contention(8, 0, 1), Contention),
        (Suite::new().contention(8, 1, 0), Contention),
        (Suite::new().contention(0, 8, 1), Contention),
    ] {
        let failure = suite.phases(&[phase]).run_blocking(Arc::clone(&store)).unwrap_err();
        assert_eq!(failure.phase(), phase);
    }
}
