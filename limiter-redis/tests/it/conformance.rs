//! The Redis store does what every store must do, on one server and in a cluster.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use limiter_core::BoxFuture;
use limiter_core::store::LogKey;
use limiter_redis::Connection;
use limiter_testkit::conformance::{Failure, Report, Suite};
use limiter_testkit::conformance_tests;
use sim::Direct;
use testbed::server::Server;

use crate::access::{allow, as_user, basic_rules, rules};
use crate::support::{builder, connect, shared_cluster};

/// The server of all phases: the suite's keys are its own.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let server = Server::start().unwrap();
    allow(&server, "suite", &basic_rules());
    server
});

/// Runs the suite on several connections, and on one that is opened late, as a user with the documented rules alone.
async fn through_connections(suite: Suite, url: &str, count: usize) -> Result<Report, Failure> {
    let url = as_user(url, "suite");
    let open = async || Arc::new(connect(&url).await);
    let mut handles = Vec::new();
    for _ in 0..count {
        handles.push(open().await);
    }
    suite.run_handles(handles, open()).await
}

/// Returns a function that puts something else in a log's place.
async fn damage() -> impl Fn(LogKey<'_>) -> BoxFuture<'static, ()> {
    let store = connect(&SERVER.url()).await;
    move |log| {
        let key = store.redis_key(log);
        SERVER.command::<()>(&[&b"SET"[..], &key, b"text"]).unwrap();
        Box::pin(async {})
    }
}

conformance_tests!(
    a_simulated_server,
    Suite::slow(),
    async |suite| {
        let server = Direct::default();
        let open = || {
            builder()
                .with_connection(Connection::new(server.clone()))
                .map(Arc::new)
        };
        let handles = vec![open().unwrap(), open().unwrap()];
        suite.run_handles(handles, async { open().unwrap() }).await
    },
    handles
);
conformance_tests!(
    one_server,
    // `expiry` reads for how long a log at given times is kept.
    Suite::slow().sizes(|sizes| sizes.wait = Duration::from_secs(2)),
    async |suite| through_connections(suite.damage(damage().await), &SERVER.url(), 2).await,
    handles
);
conformance_tests!(
    a_cluster,
    Suite::slow(),
    async |suite| {
        let cluster = shared_cluster();
        for node in cluster.nodes() {
            allow(node, "suite", &format!("{} {}", basic_rules(), rules()[2]));
        }
        through_connections(suite, &cluster.url(), 3).await
    },
    handles
);
