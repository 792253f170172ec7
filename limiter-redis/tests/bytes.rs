//! What an entry takes in the server's memory.

use limiter_core::store::LogKey;
use limiter_core::{Limit, Limiter};
use limiter_redis::RedisStore;
use limiter_testkit::server::Server;

mod common;

async fn limiter(server: &Server, max: u64) -> Limiter<RedisStore> {
    Limiter::new("search", Limit::per_hour(max).unwrap(), common::connect(&server.url()).await)
}

async fn bytes_per_entry(server: &Server, entries: u64) -> f64 {
    let limiter = limiter(server, entries).await;
    let key = format!("log of {entries}");
    for _ in 0..entries {
        assert!(limiter.acquire(&key).await.unwrap().allowed());
    }
    let stored = limiter.store().redis_key(LogKey::new(limiter.name(), &key));
    let usage = server.command(&[b"MEMORY".as_slice(), b"USAGE", &stored, b"SAMPLES", b"0"]).unwrap().int();
    assert_eq!(server.command(&[b"ZCARD".as_slice(), &stored]).unwrap().int(), i64::try_from(entries).unwrap());
    usage as f64 / entries as f64
}

#[tokio::test]
async fn a_unit_entry_is_small() {
    let server = Server::start().unwrap();
    for (entries, most) in [(100, 32.0), (1_000, 140.0)] {
        let bytes = bytes_per_entry(&server, entries).await;
        println!("{bytes:.1} bytes per entry of {entries}");
        assert!(bytes <= most, "{bytes:.1} bytes per entry of {entries}, expected at most {most}");
    }
}

#[tokio::test]
async fn an_entry_is_one_member_whatever_its_weight() {
    let server = Server::start().unwrap();
    let limiter = limiter(&server, 1 << 40).await;
    for weight in [1, 1_000, 1 << 40] {
        let key = format!("weight {weight}");
        assert!(limiter.record(&key).cost(weight).await.unwrap().allowed());
        let stored = limiter.store().redis_key(LogKey::new(limiter.name(), &key));
        assert_eq!(server.command(&[b"ZCARD".as_slice(), &stored]).unwrap().int(), 1);
    }
}
