//! The Postgres store does what every store must do, through three pools as in three processes.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::BoxFuture;
use limiter_testkit::conformance::Suite;
use limiter_testkit::conformance_tests;

use crate::{SERVER, store};

conformance_tests!(
    three_processes,
    tokio,
    // On a busy test machine, a server with a disk may not respond for seconds.
    Suite::slow().sizes(|sizes| sizes.call = Duration::from_secs(120)),
    async |suite| {
        let handle = async || Arc::new(store(&SERVER.url()).await);
        let (first, second) = (handle().await, handle().await);
        let sweeper = first.table().clone();
        let sweep = move || -> BoxFuture<'static, ()> {
            let table = sweeper.clone();
            Box::pin(async move {
                table.sweep().await.unwrap();
            })
        };
        suite
            .sweep(sweep)
            .run_handles(vec![first, second], handle())
            .await
    },
    handles
);
