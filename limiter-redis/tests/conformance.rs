//! The Redis store does what every store must do: on one server, on a cluster, and behind its object-safe twin.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::SharedStore;
use limiter_testkit::conformance::{Phase, Suite};
use limiter_testkit::conformance_tests;
use limiter_testkit::server::{Cluster, Server};

use common::{connect, connect_with_group_commit};

mod common;

/// No run may hang.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

async fn connect_object_safe(url: &str) -> SharedStore {
    Arc::new(connect(url).await)
}

// Each handle is a connection.
conformance_tests!(
    one_server,
    connect(&server.url()).await,
    with server = Server::start().unwrap(),
    suite = Suite::slow(),
    handles = 2,
    runtime = tokio,
);
conformance_tests!(
    the_object_safe_twin,
    connect_object_safe(&server.url()).await,
    with server = Server::start().unwrap(),
    suite = Suite::shared(),
    handles = 2,
    runtime = tokio,
);
conformance_tests!(
    a_cluster,
    connect(&cluster.url()).await,
    with cluster = Cluster::start().unwrap(),
    suite = Suite::slow(),
    handles = 3,
    runtime = tokio,
);
conformance_tests!(
    group_commit,
    connect_with_group_commit(&server.url()).await,
    with server = Server::start().unwrap(),
    suite = Suite::slow(),
    handles = 2,
    runtime = tokio,
);
conformance_tests!(
    group_commit_in_a_cluster,
    connect_with_group_commit(&cluster.url()).await,
    with cluster = Cluster::start().unwrap(),
    suite = Suite::slow(),
    handles = 2,
    runtime = tokio,
);

fn on_tokio(suite: Suite) -> Suite {
    suite.spawn(|task| Box::pin(async { _ = tokio::spawn(task).await }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_removes_its_keys() {
    let server = Server::start().unwrap();
    let handles = vec![Arc::new(connect(&server.url()).await), Arc::new(connect(&server.url()).await)];
    let suite = on_tokio(Suite::shared());
    let report = tokio::time::timeout(RUN_TIMEOUT, suite.run_handles(handles)).await.unwrap().unwrap();
    for phase in Phase::ALL {
        println!("{phase:?}: {} calls", report.operations_of(phase));
        assert!(report.operations_of(phase) > 0, "{report:?}");
    }
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_of_operations_conforms() {
    let server = Server::start().unwrap();
    let suite = Suite::new().depth(2).phases(&[Phase::Exhaustive]);
    let store = Arc::new(connect(&server.url()).await);
    let report = tokio::time::timeout(RUN_TIMEOUT, suite.run(store)).await.unwrap().unwrap();
    assert_eq!(report.short_sequences, 2_514);
}
