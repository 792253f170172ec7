//! Requests with several descriptors, against a model.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use limiter_core::SharedStore;
use limiter_memory::MemoryStore;
use limiter_server::proto::Code;
use limiter_server::service::Headers;
use limiter_testkit::ReferenceStore;
use proptest::prelude::*;

use crate::answers::{CONFIG, Fixture};
use crate::ask::{assert_fields, decided};

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Enforced,
    Quota,
    Shadow,
}
use Class::{Enforced, Quota, Shadow};

/// A key, and its rule's class and limit.
const TOGETHER: [(&str, Class, (u64, u64)); 7] = [
    ("user", Enforced, (3, 60)),
    ("site", Enforced, (5, 1)),
    ("tokens", Enforced, (1_000, 3_600)),
    ("window", Enforced, (7, 90)),
    ("monthly", Quota, (1, 2_592_000)),
    ("yearly", Quota, (2, 31_536_000)),
    ("tried", Shadow, (1, 604_800)),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Enforced rules deny alone, quotas together, and rules in shadow mode never. A charge of a descriptor counts in any case,
    /// and any other cost only if the request is admitted.
    #[test]
    fn descriptors_are_decided_together_like_their_model(
        store in any::<bool>(),
        calls in prop::collection::vec((0..40_u64, prop::collection::btree_map(0..7_usize, (0..5_u64, any::<bool>()), 1..5)), 1..25),
    ) {
        let store: SharedStore = if store { Arc::new(MemoryStore::new()) } else { Arc::new(ReferenceStore::new()) };
        let fixture = Fixture::new(CONFIG, store, Headers::Ratelimit);
        let mut now = 0;
        let mut logs: [Vec<(u64, u64)>; 7] = Default::default();
        for (seconds, descriptors) in calls {
            fixture.clock.advance(Duration::from_secs(seconds));
            now += seconds;
            let parts: Vec<_> = descriptors
                .into_iter()
                .map(|(i, (cost, is_charge))| {
                    let (_, _, (max, window)) = TOGETHER[i];
                    // A cost of the request is one unit; a charge of nothing is a look.
                    let cost = if is_charge { cost * max.div_ceil(3) } else { 1 };
                    let used: u64 = logs[i].iter().filter(|(at, _)| now - at < window).map(|(_, cost)| cost).sum();
                    (i, cost, is_charge, used + cost.max(1) <= max)
                })
                .collect();
            let class = |class| move |(i, ..): &&(usize, u64, bool, bool)| TOGETHER[*i].1 == class;
            let mut quotas = parts.iter().filter(class(Quota)).peekable();
            let is_spent = quotas.peek().is_some() && quotas.all(|(.., fits)| !fits);
            let is_admitted = !is_spent && parts.iter().filter(class(Enforced)).all(|(.., fits)| *fits);
            for (i, cost, is_charge, fits) in &parts {
                if *cost > 0 && (*is_charge || (is_admitted && *fits)) {
                    logs[*i].push((now, *cost));
                }
            }
            let asked = parts.iter().map(|(i, cost, is_charge, _)| {
                let charge = if *is_charge { format!(" +{cost}") } else { String::new() };
                format!("{}=x{charge}", TOGETHER[*i].0)
            });
            let asked = asked.collect::<Vec<_>>().join(" & ");
            let answer = fixture.service.decide(&decided(&asked), None).now_or_never().unwrap().unwrap();
            prop_assert_eq!(answer.overall_code() == Code::Ok, is_admitted, "at {} s: {}", now, asked);
            for ((i, _, _, fits), status) in parts.iter().zip(&answer.statuses) {
                let (name, class, (max, window)) = TOGETHER[*i];
                let used: u64 = logs[*i].iter().filter(|(at, _)| now - at < window).map(|(_, cost)| cost).sum();
                prop_assert_eq!(status.code() == Code::Ok, *fits || class == Shadow, "{} at {} s: {}", name, now, asked);
                prop_assert_eq!(u64::from(status.limit_remaining), max.saturating_sub(used), "{} at {} s: {}", name, now, asked);
            }
            assert_fields(&serde_json::to_value(&answer).unwrap());
        }
    }
}
