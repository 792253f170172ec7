//! A batch of acquires over Redis: in order, and pipelined.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use limiter_core::store::LogKey;
use limiter_core::{ErrorKind, Limiter, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::{Cluster, Server};
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Client, Cmd, Pipeline, RedisFuture, Value};

use common::{builder, connect};

mod common;

/// A connection that counts how many commands are under way at a time.
#[derive(Clone)]
struct Counting {
    inner: ConnectionManager,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl ConnectionLike for Counting {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let reply = self.inner.req_packed_command(cmd).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            reply
        })
    }

    fn req_packed_commands<'a>(&'a mut self, p: &'a Pipeline, o: usize, c: usize) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(p, o, c)
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Twelve units of each of these keys, three acquires a key.
fn batch(keys: u32) -> impl Iterator<Item = (u32, u64)> {
    [5, 4, 3].into_iter().flat_map(move |cost| (0..keys).map(move |key| (key, cost)))
}

#[tokio::test]
async fn a_batch_is_pipelined_and_answered_in_order() {
    let server = Server::start().unwrap();
    let inner = ConnectionManager::new(Client::open(server.url()).unwrap()).await.unwrap();
    let connection = Counting { inner, running: Arc::default(), most: Arc::default() };
    let store = builder().with_connection(connection.clone()).unwrap();
    let limiter = Limiter::new("search", policy!("9/1h"), store);
    let results = limiter.acquire_many(batch(400)).await;
    let verdicts: Vec<_> = results.into_iter().map(|result| result.unwrap()).map(|d| (d.allowed(), d.used())).collect();
    let expected = [(true, 5), (true, 9), (false, 9)];
    assert_eq!(verdicts, expected.into_iter().flat_map(|pair| [pair; 400]).collect::<Vec<_>>());
    let most = connection.most.load(Ordering::SeqCst);
    assert!((200..=256).contains(&most), "{most} at a time");
}

#[tokio::test]
async fn a_batch_in_a_cluster_and_with_group_commit() {
    let cluster = Cluster::start().unwrap();
    for (name, group_commit) in [("search", false), ("login", true)] {
        let store: RedisStore = builder().group_commit(group_commit).connect(&cluster.url()).await.unwrap();
        let limiter = Limiter::new(name, policy!("9/1h"), store);
        let results = limiter.acquire_many(batch(100)).await;
        let used: Vec<_> = results.into_iter().map(|result| result.unwrap().used()).collect();
        assert_eq!(used, [5, 9, 9].into_iter().flat_map(|used| [used; 100]).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn an_error_is_that_of_one_acquire() {
    let server = Server::start().unwrap();
    let limiter = Limiter::new("search", policy!("9/1h"), connect(&server.url()).await);
    let stored = limiter.store().redis_key(LogKey::new(limiter.name(), "text"));
    server.command(&[b"SET".as_slice(), &stored, b"text"]).unwrap();
    let results = limiter.acquire_many([("a", 1), ("a", 0), ("text", 1), ("a", 10), ("a", 2)]).await;
    let kinds: Vec<_> =
        results.iter().map(|result| result.as_ref().map_or_else(|e| Err(e.kind()), |d| Ok(d.used()))).collect();
    let errors = [ErrorKind::InvalidCost, ErrorKind::Corrupt, ErrorKind::CostExceedsLimit].map(Err);
    assert_eq!(kinds, [Ok(1), errors[0], errors[1], errors[2], Ok(3)]);
}
