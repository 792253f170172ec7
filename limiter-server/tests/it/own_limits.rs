//! Limits that descriptors bring, against a model.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use limiter_server::proto::Code;
use limiter_server::service::Headers;
use proptest::prelude::*;

use crate::answers::{fixture, request};

/// A key, the limits of its rule, each a maximum and seconds, and whether the rule counts attempts.
type Row = (&'static str, &'static [(u64, u64)], bool);

const RULES: [Row; 4] = [
    ("user", &[(3, 60)], false),
    ("two", &[(2, 10), (3, 3_600)], false),
    ("login", &[(1, 10)], true),
    ("hammered", &[(1, 10), (9, 3_600)], true),
];
const UNITS: [(&str, u64); 4] = [
    ("SECOND", 1),
    ("MINUTE", 60),
    ("HOUR", 3_600),
    ("DAY", 86_400),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each rule has a log, and so has each unit of the limits that descriptors bring to it. These count admitted requests, and
    /// all logs count every charge of a descriptor.
    #[test]
    fn a_limit_of_a_descriptor_counts_like_its_model(
        calls in prop::collection::vec(
            (prop_oneof![0..3_u64, 0..90_u64, 0..50_000_u64], 0..4_usize, 1..4_u64, any::<bool>(), prop::option::of((1..7_u64, 0..4_usize))),
            1..60,
        ),
    ) {
        let (fixture, mut now, mut logs) = (fixture(Headers::None), 0, HashMap::<_, Vec<(u64, u64)>>::new());
        for (i, (seconds, rule, cost, is_charge, own)) in calls.into_iter().enumerate() {
            fixture.clock.advance(Duration::from_secs(seconds));
            now += seconds;
            let (key, limits, attempts) = RULES[rule];
            let own = own.map(|(max, unit)| (max, UNITS[unit]));
            let log = logs.entry((rule, own.map(|(_, unit)| unit))).or_default();
            let (limits, attempts) = own.map_or((limits.to_vec(), attempts), |(max, unit)| (vec![(max, unit.1)], false));
            let used = |window| log.iter().filter(|(at, _)| now - at < window).map(|(_, cost)| cost).sum::<u64>();
            let fits = limits.iter().all(|(max, window)| used(*window) + cost <= *max);
            if fits || is_charge || (attempts && limits.iter().all(|(max, _)| cost <= *max)) {
                log.push((now, cost));
            }
            let brought = own.map_or(String::new(), |(max, (unit, _))| format!(" @{max}/{unit}"));
            let charge = if is_charge { format!(" +{cost}") } else { String::new() };
            let asked = format!("{key}=x{charge}{brought}");
            let answer = fixture.ask(&request("d", &asked, cost.try_into().unwrap())).now_or_never().unwrap().unwrap();
            prop_assert_eq!(answer.overall_code() == Code::Ok, fits, "call {} at {} s: {}", i, now, asked);
        }
    }
}
