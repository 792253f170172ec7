//! Budgets by level on a real Redis: one decision over a key, its user, its team and its organisation.

use std::time::Duration;

use exact_limiter::{AllOf, Limit, Limiter, Policy};
use futures::future::join_all;
use testbed::server::Server;

use crate::patient;

/// The maximum of each level: eight keys of four users in two teams of one organisation.
const LEVELS: [(&str, u64, u64); 4] = [
    ("key", 8, 8),
    ("user", 14, 4),
    ("team", 24, 2),
    ("organisation", 45, 1),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_exceed_no_level_and_each_is_one_script() {
    let server = Server::start().unwrap();
    let scripts = || {
        let stats = server.info("commandstats").unwrap();
        let (_, rest) = stats.split_once("cmdstat_evalsha:calls=").unwrap();
        rest.split_once(',').unwrap().0.parse::<u64>().unwrap()
    };
    let store = patient(&server.url());
    let limit = |max| Policy::from(Limit::new(max, Duration::from_secs(3_600)).unwrap());
    let levels = LEVELS.map(|(name, max, _)| Limiter::new(name, limit(max), store.clone()));
    // Returns the level that denies.
    let call = async |ids: [u64; 4]| {
        let mut all = AllOf::new();
        for (level, id) in levels.iter().zip(ids) {
            all = all.with(level.acquire(id));
        }
        let denied = all.await.unwrap().into_result().err()?;
        denied.limiter_name().map(str::to_owned)
    };
    // The first call loads the script.
    assert_eq!(levels[0].status(9).await.unwrap().used(), 0);
    let before = scripts();
    let ids = |i: u64| LEVELS.map(|(_, _, keys)| i % keys);
    let denied = join_all((0..100).map(|i| call(ids(i)))).await;
    assert_eq!(scripts() - before, 100);
    assert_eq!(denied.iter().filter(|by| by.is_none()).count(), 45);
    for (level, (name, max, keys)) in levels.iter().zip(LEVELS) {
        let used = join_all((0..keys).map(async |id| level.status(id).await.unwrap().used())).await;
        assert!(used.iter().all(|used| *used <= max), "{name}: {used:?}");
        // Nothing stays of a denied call.
        assert_eq!(used.iter().sum::<u64>(), 45, "{name}: {used:?}");
    }
    let by = call([9, 9, 9, 0]).await;
    assert_eq!(by.as_deref(), Some("organisation"));
}
