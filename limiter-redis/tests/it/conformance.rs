//! The Redis store does what every store must do, on one server and in a cluster.

use std::sync::{Arc, LazyLock};

use limiter_testkit::conformance::{Phase, Suite};
use limiter_testkit::conformance_tests;
use limiter_testkit::server::Server;

use crate::support::{connect, shared_cluster};

/// The server of all phases: the suite's keys are its own.
static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start().unwrap());

// Each handle is a connection.
conformance_tests!(one_server, connect(&SERVER.url()).await, suite = Suite::slow(), handles = 2, runtime = tokio);
conformance_tests!(
    a_cluster,
    connect(&shared_cluster().url()).await,
    suite = Suite::slow(),
    handles = 3,
    runtime = tokio,
);
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_of_operations_conforms_and_no_key_remains() {
    let server = Server::start().unwrap();
    let suite = Suite::new().depth(2).phases(&[Phase::Exhaustive]);
    let report = suite.run(Arc::new(connect(&server.url()).await)).await.unwrap();
    assert_eq!(report.short_sequences, 3_234);
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), 0);
}
