//! A rolling upgrade to a later format: programs of both formats share a server, and neither sees the other's logs.

use limiter_core::policy;
use limiter_redis::RedisStore;
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd};
use testbed::server::Server;

use crate::scan::scanned;
use crate::support::{Hooked, builder, connect, db_size, inspected, search};

/// Returns these bytes with one version of the format in place of the other.
fn renumbered(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    match bytes.strip_prefix(from) {
        Some(rest) => [to, rest].concat(),
        None => bytes.to_vec(),
    }
}

/// A store that differs from this one in the number of its format.
async fn later(server: &Server) -> RedisStore {
    const OWN: [&[u8]; 2] = [b"limiter:1:", b"limiter:2:"];
    let connection = Hooked::connect(server, |inner, cmd| {
        let mut sent = Cmd::new();
        for arg in cmd.args_iter() {
            if let Arg::Simple(arg) = arg {
                sent.arg(renumbered(arg, OWN[0], OWN[1]));
            }
        }
        Box::pin(async move {
            let mut reply = inner.req_packed_command(&sent).await?;
            // The keys of a scan.
            if let redis::Value::Array(parts) = &mut reply
                && let Some(redis::Value::Array(keys)) = parts.get_mut(1)
            {
                for key in keys {
                    if let redis::Value::BulkString(key) = key {
                        *key = renumbered(key, OWN[1], OWN[0]);
                    }
                }
            }
            Ok(reply)
        })
    });
    builder().with_connection(connection.await).unwrap()
}

#[tokio::test]
async fn old_and_new_programs_share_a_server_and_no_log() {
    let server = Server::start().unwrap();
    let old = search(policy!("3/1h"), connect(&server.url()).await);
    let new = search(policy!("3/1h"), later(&server).await);
    // For each key, a switch admits at most twice the maximum.
    for used in 1..=3 {
        for limiter in [&old, &new] {
            let decision = limiter.acquire("k").await.unwrap();
            assert_eq!((decision.is_allowed(), decision.used()), (true, used));
        }
    }
    for limiter in [&old, &new] {
        assert!(!limiter.acquire("k").await.unwrap().is_allowed());
        assert_eq!(inspected(limiter, "k").await, (3, 3));
        assert_eq!(scanned(limiter.store(), None, 100).await.len(), 1);
    }
    assert!(old.reset("k").await.unwrap() && new.reset("k").await.unwrap());
    assert_eq!(db_size(&server), 0);
}
