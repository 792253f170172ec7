//! Budgets by level on a real Redis: the recipe's one decision over a key, its user, its team and its organisation.

use std::time::Duration;

use exact_limiter::{AllOf, Limit, Limiter, Policy, open_store, policy};
use futures::future::join_all;
use testbed::server::Server;

/// Eight keys of four users in two teams of one organisation.
const LEVELS: [(&str, u64, u64); 4] = [
    ("key", 8, 8),
    ("user", 14, 4),
    ("team", 24, 2),
    ("organisation", 45, 1),
];

fn scripts(server: &Server) -> u64 {
    let stats = server.info("commandstats").unwrap();
    let calls = stats.split_once("cmdstat_evalsha:calls=");
    calls.map_or(0, |(_, rest)| {
        rest.split_once(',').unwrap().0.parse().unwrap()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_exceed_no_level_and_each_is_one_script() {
    let server = Server::start().unwrap();
    let store = open_store(&server.url()).unwrap();
    let limit = |max| Policy::from(Limit::new(max, Duration::from_secs(3_600)).unwrap());
    let levels = LEVELS.map(|(name, max, _)| Limiter::new(name, limit(max), store.clone()));
    let call = async |ids: [Option<u64>; 4], plan: Option<&Policy>| {
        let mut all = AllOf::new();
        for (level, id) in levels.iter().zip(ids) {
            // A request may lack a level.
            let Some(id) = id else { continue };
            let acquire = level.acquire(id);
            all = all.with(
                match plan.filter(|_| level.name().as_str() == "organisation") {
                    Some(plan) => acquire.policy(plan),
                    None => acquire,
                },
            );
        }
        let decision = all.await.unwrap();
        let by = decision.parts().iter().filter(|part| part.denies());
        let by: Vec<_> = by.map(|part| part.limiter().name().as_str()).collect();
        let denied = decision.into_result().err()?;
        let name = denied.limiter_name().unwrap().to_owned();
        assert!(by.contains(&&*name) && denied.to_string().starts_with(&name));
        Some(name)
    };
    // The first call loads the script.
    assert_eq!(call([Some(100), None, None, None], None).await, None);
    let before = scripts(&server);
    let ids = |i: u64| LEVELS.map(|(_, _, keys)| Some(i % keys));
    let denied = join_all((0..100).map(|i| call(ids(i), None))).await;
    assert_eq!(scripts(&server) - before, 100);
    assert_eq!(denied.iter().filter(|by| by.is_none()).count(), 45);
    for (level, (name, max, keys)) in levels.iter().zip(LEVELS) {
        let used = join_all((0..keys).map(async |id| level.status(id).await.unwrap().used())).await;
        assert!(used.iter().all(|used| *used <= max), "{name}: {used:?}");
        assert_eq!(
            used.iter().sum::<u64>(),
            45,
            "{name}: nothing stays of a denied call"
        );
    }
    let others = [Some(9), None, Some(9), Some(0)];
    let larger = policy!("46/1h");
    for (plan, by) in [
        (None, Some("organisation")),
        (Some(&larger), None),
        (Some(&larger), Some("organisation")),
    ] {
        assert_eq!(call(others, plan).await.as_deref(), by, "{plan:?}");
    }
}
