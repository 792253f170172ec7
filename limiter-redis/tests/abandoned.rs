//! An operation that its caller has given up does not count later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use limiter_core::{Counting, ErrorKind, Limiter, Policy, policy};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Client, Cmd, Pipeline, RedisFuture, Value};

use common::{builder, soon};

mod common;

const RESPONSE: Duration = Duration::from_millis(250);

async fn limiter(server: &Server, policy: Policy, retries: u32, group_commit: bool) -> Limiter<RedisStore> {
    let builder = builder().response_timeout(RESPONSE).retries(retries).group_commit(group_commit);
    let store = builder.connect(&server.url()).await.unwrap();
    let limiter = Limiter::new("search", policy, store);
    // The server's clock is known from the first reply that comes in time.
    let warm_up = async { while limiter.acquire("other").await.is_err() {} };
    soon(warm_up).await;
    limiter
}

#[tokio::test]
async fn what_timed_out_while_the_server_was_stopped_does_not_count() {
    let attempts = policy!("20/1h").with_counting(Counting::Attempts);
    let plain = policy!("20/1h");
    for (policy, retries, group_commit) in [
        (plain.clone(), 0, false),
        (plain.clone(), 1, false),
        (attempts, 0, false),
        (plain.clone(), 0, true),
        (plain, 1, true),
    ] {
        let server = Server::start().unwrap();
        let limiter = limiter(&server, policy, retries, group_commit).await;
        // This one arrived before.
        assert!(limiter.acquire("k").await.unwrap().allowed());
        server.pause().unwrap();
        let acquires = (0..100_u128).map(|n| {
            let acquire = limiter.acquire("k");
            if n % 3 == 0 { acquire.id(n).into_future() } else { acquire.into_future() }
        });
        for done in join_all(acquires).await {
            assert_eq!(done.unwrap_err().kind(), ErrorKind::Timeout);
        }
        // The deadline is late by no more than the time of the slowest reply, which the response timeout bounds.
        tokio::time::sleep(RESPONSE).await;
        server.resume().unwrap();
        let used = async {
            loop {
                if let Ok(decision) = limiter.peek("k").await {
                    return decision.used();
                }
            }
        };
        assert_eq!(soon(used).await, 1, "{retries} retries, {group_commit}");
        assert!(limiter.acquire("k").await.unwrap().allowed());
    }
}

/// A connection whose first reply to a decision is from an hour ago, as if the server's clock had been set forward since.
#[derive(Clone)]
struct SetForward {
    inner: ConnectionManager,
    decisions: Arc<AtomicU64>,
}

impl ConnectionLike for SetForward {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let mut reply = self.inner.req_packed_command(cmd).await?;
            if let Value::BulkString(bytes) = &mut reply
                && self.decisions.fetch_add(1, Ordering::Relaxed) == 0
            {
                let mut time = [0; 8];
                time[1..].copy_from_slice(&bytes[1..8]);
                let earlier = u64::from_be_bytes(time) - 3_600_000_000;
                bytes[1..8].copy_from_slice(&earlier.to_be_bytes()[1..]);
            }
            Ok(reply)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

#[tokio::test]
async fn a_clock_that_is_set_forward_costs_one_round_trip() {
    let server = Server::start().unwrap();
    let inner = ConnectionManager::new(Client::open(server.url()).unwrap()).await.unwrap();
    let connection = SetForward { inner, decisions: Arc::default() };
    let limiter = Limiter::new("search", policy!("5/1h"), builder().with_connection(connection.clone()).unwrap());
    for used in 1..=4 {
        let decision = limiter.acquire("k").await.unwrap();
        assert_eq!((decision.allowed(), decision.used()), (true, used));
    }
    assert_eq!(connection.decisions.load(Ordering::Relaxed), 5, "the second was late once");
}
