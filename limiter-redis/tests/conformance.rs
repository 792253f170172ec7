//! The Redis store does what every store must do: on one server, on a cluster, and behind its object-safe twin.

use std::sync::Arc;
use std::time::Duration;

use limiter_core::{DynWindowStore, WindowStore};
use limiter_redis::RedisStore;
use limiter_testkit::conformance::{Phase, Suite};
use limiter_testkit::server::{Cluster, Server};

/// No run may hang.
const LONGEST: Duration = Duration::from_secs(300);

async fn connect(url: &str) -> RedisStore {
    // A server on a busy test machine may be slow; late answers are not what is tested here.
    RedisStore::builder().response_timeout(Duration::from_secs(10)).connect(url).await.unwrap()
}

async fn conforms<S: WindowStore + ?Sized>(store: Arc<S>, sequences: u64) {
    let suite = Suite::new()
        .sequences(sequences)
        .depth(1)
        .contention(8, 20, 2)
        .spawn(|task| Box::pin(async { _ = tokio::spawn(task).await }));
    let report = tokio::time::timeout(LONGEST, suite.run(store)).await.unwrap().unwrap();
    assert_eq!(report.random_sequences, sequences);
    assert!(report.golden_rows >= 100 && report.contended > 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_conforms() {
    let server = Server::start().unwrap();
    conforms(Arc::new(connect(&server.url()).await), 300).await;
    let left = server.command(&["DBSIZE"]).unwrap();
    assert_eq!(left.int(), 0, "the suite removes its keys");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_of_operations_conforms() {
    let server = Server::start().unwrap();
    let suite = Suite::new().depth(2).phases(&[Phase::Exhaustive]);
    let store = Arc::new(connect(&server.url()).await);
    let report = tokio::time::timeout(LONGEST, suite.run(store)).await.unwrap().unwrap();
    assert!(report.short_sequences > 3_000, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_safe_twin_conforms() {
    let server = Server::start().unwrap();
    let store: Arc<dyn DynWindowStore> = Arc::new(connect(&server.url()).await);
    conforms(store, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_conforms() {
    let cluster = Cluster::start().unwrap();
    conforms(Arc::new(connect(&cluster.url()).await), 200).await;
}
