//! Two processes share one limit through Redis: `cargo run --example shared_limit --features redis`.
//!
//! It starts a Redis server, and a second process of itself. Set `REDIS_URL=redis://…` to use an existing server.
//! `cargo test` also runs it.

use std::process::{Command, Stdio};
use std::time::Duration;

use exact_limiter::{Limit, Limiter, RedisStore};

/// The environment variable that makes this process the second one. It holds the server's URL.
const SECOND: &str = "SHARED_LIMIT_SECOND";
const LIMIT: u64 = 100;
const TRIES: u64 = 80;

/// Makes [`TRIES`] acquires and returns how many were allowed.
async fn work(url: &str) -> Result<u64, exact_limiter::Error> {
    let store = RedisStore::builder().prefix("shared-limit-example").connect(url).await?;
    let limiter = Limiter::new("search", Limit::new(LIMIT, Duration::from_secs(600))?, store);
    let mut allowed = 0;
    for _ in 0..TRIES {
        allowed += u64::from(limiter.acquire("customer 7").await?.allowed());
    }
    Ok(allowed)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Ok(url) = std::env::var(SECOND) {
        println!("{}", work(&url).await?);
        return Ok(());
    }

    let (_server, url) = match std::env::var("REDIS_URL") {
        Ok(url) => (None, url),
        Err(_) => {
            let server = limiter_testkit::server::Server::start()?;
            let url = server.url();
            (Some(server), url)
        }
    };
    let other = Command::new(std::env::current_exe()?).env(SECOND, &url).stdout(Stdio::piped()).spawn()?;
    let here = work(&url).await?;
    let there: u64 = String::from_utf8(other.wait_with_output()?.stdout)?.trim().parse()?;
    println!("allowed: {here} of {TRIES} in this process, {there} of {TRIES} in the other, {} in total", here + there);
    assert_eq!(here + there, LIMIT);

    let store = RedisStore::builder().prefix("shared-limit-example").connect(&url).await?;
    let limiter = Limiter::new("search", Limit::new(LIMIT, Duration::from_secs(600))?, store);
    let denied = limiter.peek("customer 7").await?;
    println!("the next request would fit after {:?}", denied.retry_after());
    limiter.reset("customer 7").await?;
    println!("reset: {} remaining", limiter.status("customer 7").await?.remaining());
    Ok(())
}
