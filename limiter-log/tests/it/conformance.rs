//! The store over a map does what every store must do, even if every third comparison is lost.

use std::sync::Arc;

use limiter_core::BoxFuture;
use limiter_core::store::LogKey;
use limiter_log::LogStore;
use limiter_testkit::conformance::{Failure, Report, Suite};
use limiter_testkit::conformance_tests;

use crate::map::Map;

/// Runs the suite on several stores over one map, as in several processes.
async fn through_stores(suite: Suite, map: Map) -> Result<Report, Failure> {
    let sweeper = map.clone();
    let sweep = move || -> BoxFuture<'static, ()> {
        sweeper.sweep();
        Box::pin(async {})
    };
    let damaged = map.clone();
    let damage = move |log: LogKey<'_>| -> BoxFuture<'static, ()> {
        damaged.damage(log);
        Box::pin(async {})
    };
    let store = || Arc::new(LogStore::new(map.clone()));
    suite
        .sweep(sweep)
        .damage(damage)
        .run_handles(vec![store(), store()], async { store() })
        .await
}

conformance_tests!(
    several_keys,
    Suite::new(),
    async |suite| through_stores(
        suite,
        Map {
            takes_several: true,
            lost: 3,
            ..Map::default()
        }
    )
    .await,
    handles
);
conformance_tests!(
    one_key,
    Suite::slow(),
    async |suite| through_stores(
        suite,
        Map {
            lost: 2,
            ..Map::default()
        }
    )
    .await,
    handles
);
