//! Random calls, refusals and lost answers.

use std::time::Duration;

use limiter_core::{Limiter, Receipt, policy};
use proptest::prelude::*;
use tokio::time::sleep;

use super::Scene;
use crate::faulty::{Does, used};

/// What the caller does, and what the server does with it and with the replay.
#[derive(Clone, Debug)]
enum Step {
    Acquire { key: u8, cost: u64, by_id: bool },
    Repeat { entry: usize, cost: u64 },
    Settle { entry: usize, cost: u64 },
    Reset { key: u8 },
    Rest,
}

fn steps() -> impl Strategy<Value = Vec<(Step, Vec<Does>)>> {
    let step = prop_oneof![
        4 => (0..2_u8, 1..100_u64, any::<bool>()).prop_map(|(key, cost, by_id)| Step::Acquire { key, cost, by_id }),
        2 => (0..100_usize, 1..100_u64).prop_map(|(entry, cost)| Step::Repeat { entry, cost }),
        4 => (0..100_usize, 0..4_u64).prop_map(|(entry, cost)| Step::Settle { entry, cost: cost * 50 }),
        1 => (0..2_u8).prop_map(|key| Step::Reset { key }),
        2 => Just(Step::Rest),
    ];
    let does = prop_oneof![3 => Just(Does::Answer), 2 => Just(Does::Refuse), 2 => Just(Does::LoseAnswer)];
    prop::collection::vec((step, prop::collection::vec(does, 1..4)), 1..60)
}

struct Entry {
    key: u8,
    cost: u64,
    by_id: bool,
    receipt: Option<Receipt>,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is refused and whatever answer is lost, each entry counts once, at the cost of its last settlement.
    #[test]
    fn each_entry_counts_once_at_its_last_cost(steps in steps(), has_resolution: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let scene = Scene::new();
            let policy = if has_resolution { policy!("1000000/1h~1m") } else { policy!("1000000/1h") };
            let limiter = Limiter::new("t", policy, scene.store.clone());
            let mut entries: Vec<Entry> = Vec::new();
            for (step, does) in steps {
                let mut calls = does.clone().into_iter().cycle();
                scene.server.rule(move |_, _| calls.next().unwrap_or(Does::Answer));
                match step {
                    Step::Acquire { key, cost, by_id } => {
                        let call = limiter.acquire([key]).cost(cost);
                        // Without an id, a call whose answer is lost may count twice.
                        let call = if by_id { call.id(entries.len() as u128) } else {
                            let does = if does[0] == Does::LoseAnswer { Does::Refuse } else { does[0] };
                            scene.server.set(does);
                            call
                        };
                        let receipt = call.await.unwrap().receipt();
                        entries.push(Entry { key, cost, by_id, receipt });
                    }
                    Step::Repeat { entry, cost } => {
                        let index = entry % entries.len().max(1);
                        if let Some(entry) = entries.get_mut(index).filter(|entry| entry.by_id) {
                            // A refund has freed the id.
                            entry.cost = if entry.cost > 0 { entry.cost } else { cost };
                            let call = limiter.acquire([entry.key]).cost(entry.cost).id(index as u128).await.unwrap();
                            entry.receipt = call.receipt();
                        }
                    }
                    Step::Settle { entry, cost } => {
                        let index = entry % entries.len().max(1);
                        if let Some(entry) = entries.get_mut(index)
                            && let Some(receipt) = entry.receipt
                        {
                            let settled = limiter.settle([entry.key], receipt, cost).await.unwrap();
                            // During an outage nobody knows that the primary store's entry is gone.
                            assert!(settled.applied() || entry.cost == 0);
                            entry.cost = if entry.cost > 0 { cost } else { 0 };
                        }
                    }
                    Step::Reset { key } => {
                        limiter.reset([key]).await.unwrap();
                        // A journaled reset removes what the log holds then.
                        scene.server.set(Does::Answer);
                        assert_eq!(scene.store.flush(Duration::MAX).await, 0);
                        entries.iter_mut().filter(|entry| entry.key == key).for_each(|entry| entry.cost = 0);
                    }
                    Step::Rest => sleep(Duration::from_millis(150)).await,
                }
            }
            scene.server.set(Does::Answer);
            assert_eq!(scene.store.flush(Duration::MAX).await, 0);
            for key in 0..2 {
                let expected: u64 = entries.iter().filter(|entry| entry.key == key).map(|entry| entry.cost).sum();
                assert_eq!(used(&scene.server, [key], &policy!("1000000/1h")), expected);
            }
        });
    }
}
