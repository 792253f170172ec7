//! Bugs of other limiters, taken from their sources and bug reports. None occurs here, in memory or in Redis.
//!
//! `known_bugs.txt` lists the bugs that a trace shows. The conformance suite finds the others: windows that hold more than the
//! limit, calls that count twice, resets of other keys, and tasks that all pass a check before one of them counts.

use std::sync::Arc;

use exact_limiter::store::Mode;
use exact_limiter::time::Timestamp;
use exact_limiter::{ErrorKind, LimitStatus, Limiter, SharedStore};
use limiter_testkit::conformance::Verb;
use limiter_testkit::golden::{RowAnswer, parse};

const SECOND: u64 = 1_000_000;

/// Returns the stores under test, and their dependencies.
async fn stores() -> Vec<(SharedStore, Box<dyn std::any::Any>)> {
    let mut stores: Vec<(SharedStore, Box<dyn std::any::Any>)> = Vec::new();
    #[cfg(feature = "memory")]
    stores.push((Arc::new(exact_limiter::MemoryStore::new()), Box::new(())));
    #[cfg(feature = "redis")]
    {
        let server = testbed::server::Server::start().unwrap();
        let patient = exact_limiter::RedisStore::builder()
            .response_timeout(std::time::Duration::from_secs(5));
        let store = patient.connect(&server.url()).await.unwrap();
        stores.push((Arc::new(store), Box::new(server)));
    }
    stores
}

/// Returns the time that is this many microseconds after an arbitrary one.
fn time(at: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000 * SECOND + at).unwrap()
}

#[tokio::test]
async fn the_traces_show_no_bug() {
    let traces = parse(include_str!("known_bugs.txt"));
    let rows: usize = traces.iter().map(|trace| trace.rows.len()).sum();
    assert_eq!((traces.len(), rows), (13, 113), "some cannot be parsed");
    for (store, _server) in stores().await {
        for trace in &traces {
            let default = trace.policies[0].clone();
            let limiter = Limiter::new(&*trace.name, default, store.clone());
            for row in &trace.rows {
                let policy = &trace.policies[usize::from(row.step.policy)];
                let cost = row.step.cost;
                let decision = match row.step.verb {
                    Verb::Run(Mode::Peek) => {
                        limiter
                            .peek("k")
                            .policy(policy)
                            .cost(cost)
                            .at(time(row.at))
                            .await
                    }
                    _ => {
                        limiter
                            .acquire("k")
                            .policy(policy)
                            .cost(cost)
                            .at(time(row.at))
                            .await
                    }
                };
                let Some(expected) = row.answer else {
                    let error = decision.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
                    let text = error.to_string();
                    let cost = cost.to_string();
                    assert!(
                        text.contains(&cost) && text.contains(&policy.to_string()),
                        "{text}"
                    );
                    continue;
                };
                let decision = decision.unwrap();
                let name = &trace.name;
                assert_eq!(RowAnswer::from(&decision), expected, "{name}: {row:?}");
                let used: Vec<u64> = decision.limits().iter().map(LimitStatus::used).collect();
                assert!(
                    row.used_each.is_empty() || used == row.used_each,
                    "{name}: {row:?}"
                );
            }
        }
    }
}
