//! The texts of the suite: scripts, golden traces, and sentences of the contract.

use std::collections::HashSet;

use limiter_core::internal::CONTRACT;
use limiter_testkit::conformance::__private::calls_of;
use limiter_testkit::conformance::{Case, Place, Sentence, Step, Verb};
use limiter_testkit::{golden, strategy};
use proptest::prelude::*;
use proptest::strategy::Union;

const SCRIPTS: &str = concat!(
    include_str!("../../src/scripts/damaged.txt"),
    include_str!("../../src/scripts/dropped.txt"),
    include_str!("../../src/scripts/forgetting.txt"),
    include_str!("../../src/scripts/forgetting_a_minute.txt"),
    include_str!("../../src/scripts/given_times.txt"),
    include_str!("../../src/scripts/several.txt"),
    include_str!("../../src/scripts/several_forgetting.txt"),
    include_str!("../../src/scripts/several_together.txt"),
    include_str!("../../src/scripts/store_clock.txt"),
    include_str!("../../src/scripts/together.txt"),
);

#[test]
fn every_script_is_complete_and_every_sentence_has_one() {
    use Sentence::{A7, A8, C2, E1, E2, L12, L14, T2, T4, T5};
    let lines = SCRIPTS.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.collect::<Vec<_>>().join("\n");
    let mut names = HashSet::new();
    let mut cited = HashSet::new();
    for script in lines
        .split("\n\n")
        .map(str::trim)
        .filter(|it| !it.is_empty())
    {
        let mut head = script.split('|');
        assert!(names.insert(head.next().unwrap()), "{script}");
        let of_steps = script.split('[').skip(1);
        let of_steps = of_steps.filter_map(|part| part.split(']').next());
        let labels = of_steps.chain(head.next()).flat_map(str::split_whitespace);
        cited.extend(labels);
        let case: Case = script.parse().unwrap();
        // A settlement without a receipt is skipped, and would leave the case unchecked.
        let calls = calls_of(&case).unwrap();
        let place = |place: Option<Place>| {
            let Place { key, limiter } = place.unwrap_or_default();
            let limiter = usize::from(limiter) % case.limiters.len().max(1);
            (
                key,
                case.limiters.get(limiter).map_or(0, |limiter| limiter.name),
            )
        };
        // Without a place, a settlement is on the log of its receipt.
        let on = |step: &Step| match step.verb {
            Verb::Settle(_) | Verb::Renew(_) => step.on.map(|on| place(Some(on))),
            _ => Some(place(step.on)),
        };
        let logs: HashSet<(u8, u8)> = case.steps.iter().filter_map(on).collect();
        let at_the_end = logs.len() * (case.policies.len() + 2);
        assert_eq!(calls as usize, case.steps.len() + at_the_end, "{script}");
    }
    assert!(names.len() > 200, "{}", names.len());
    let is_elsewhere =
        |sentence: &Sentence| [T2, T4, T5, L12, L14, A7, A8, E1, E2, C2].contains(sentence);
    for sentence in Sentence::ALL {
        let is_cited = cited.contains(sentence.label()) || is_elsewhere(sentence);
        assert!(is_cited, "{sentence}");
    }
}

#[test]
fn a_renewal_with_the_id_of_another_entry_is_no_case() {
    let case = "a case | | 3/10us\n    acquire 1 id 1 called a, acquire 1 id 2, renew a id 1 called b, renew b id";
    for (id, passes) in [(1, true), (2, false)] {
        let case: Case = format!("{case} {id}").parse().unwrap();
        assert_eq!(calls_of(&case).is_ok(), passes, "{id}");
    }
}

#[test]
fn a_case_is_what_it_prints() {
    let cases = [
        strategy::cases(1..=40).boxed(),
        strategy::joint_cases(1..=40).boxed(),
    ];
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(case in Union::new(cases))| {
        let read: Case = case.to_string().parse().unwrap();
        prop_assert_eq!(read, case);
    });
}

/// The suite itself compares the rows with the reference store.
#[test]
fn every_golden_trace_is_read() {
    let rows = golden::traces().iter().map(|trace| trace.rows.len());
    assert_eq!((rows.len(), rows.sum::<usize>()), (31, 272));
}

#[test]
fn the_enum_and_the_contract_list_the_same_items() {
    let items = CONTRACT.split("\n- **").skip(1);
    let labels: Vec<&str> = items
        .map(|item| item.split(".** ").next().unwrap())
        .collect();
    let expected = Sentence::ALL.iter().map(|sentence| sentence.label());
    assert_eq!(labels, expected.collect::<Vec<_>>());
    assert_eq!(CONTRACT.matches("**").count(), 2 * labels.len());
    for (sentence, start) in [
        (
            Sentence::L4,
            "L4: Op::appends returns true if the operation appends an entry. An operation that does not append",
        ),
        (
            Sentence::S4,
            "S4: A settlement has no effect if the log no longer holds the entry, or if the receipt has expired at the settlement's time",
        ),
    ] {
        let text = sentence.to_string();
        assert!(text.starts_with(start), "{text}");
    }
}
