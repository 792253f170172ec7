//! The Postgres store does what every store must do, with separate connections, like three processes.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::BoxFuture;
use limiter_core::store::LogKey;
use limiter_log::stored_key;
use limiter_postgres::SCHEMA;
use limiter_testkit::conformance::Suite;
use limiter_testkit::conformance_tests;

use crate::{SERVER, client, store};

/// Returns the URL of a user with the rights that the README lists, and no others.
async fn url_of_a_user() -> String {
    let readme = include_str!("../../README.md");
    let (_, rights) = readme.split_once("The user needs ").unwrap();
    let (rights, _) = rights.split_once(".\n").unwrap();
    let rights: Vec<_> = rights.split('`').skip(1).step_by(2).collect();
    let create = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(1); {SCHEMA}; \
         DO $$ BEGIN IF to_regrole('suite') IS NULL THEN CREATE ROLE suite LOGIN; END IF; END $$; \
         GRANT {} ON limiter_logs TO suite; COMMIT",
        rights.join(", ")
    );
    client(&SERVER).await.batch_execute(&create).await.unwrap();
    SERVER.url().replace("limiter", "suite")
}

conformance_tests!(
    three_processes,
    // On a busy test machine, a server with a disk may not respond for seconds.
    Suite::slow().sizes(|sizes| sizes.call = Duration::from_secs(120)),
    async |suite| {
        let url = url_of_a_user().await;
        let handle = async || Arc::new(store(&url));
        let first = handle().await;
        let second = handle().await;
        let sweeper = first.table().clone();
        let sweep = move || -> BoxFuture<'static, ()> {
            let table = sweeper.clone();
            Box::pin(async move {
                table.sweep().await.unwrap();
            })
        };
        let client = Arc::new(client(&SERVER).await);
        let damage = move |log: LogKey<'_>| -> BoxFuture<'static, ()> {
            let client = client.clone();
            let key = stored_key(log);
            Box::pin(async move {
                let damage = "UPDATE limiter_logs SET log = 'x' WHERE key = $1";
                client.execute(damage, &[&key]).await.unwrap();
            })
        };
        suite
            .sweep(sweep)
            .damage(damage)
            .run_handles(vec![first, second], handle())
            .await
    },
    handles
);
