//! The slot of a killed process is free within a window, on a real Redis.

use std::process::Command;
use std::time::Duration;

use exact_limiter::{ErrorKind, Limiter, RedisStore, policy};
use testbed::server::Server;

use crate::patient;

/// The address of Redis, for the process that is killed.
const ADDRESS: &str = "LIMITER_TEST_SLOT";

fn slots(url: &str) -> Limiter<std::sync::Arc<RedisStore>> {
    Limiter::new("slots", policy!("1/3s"), patient(url))
}

/// Holds a slot until the process is killed, if it was started by the other test.
#[tokio::test]
async fn a_process_that_holds_a_slot() {
    let Ok(url) = std::env::var(ADDRESS) else {
        return;
    };
    let slots = slots(&url);
    let slot = slots.acquire("k").idempotency_key(7).permit().await;
    let slot = slot.unwrap().into_result().unwrap();
    let lost = slot.hold(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::SlotLost);
}

#[tokio::test]
async fn the_slot_of_a_killed_process_is_free_within_a_window() {
    let server = Server::start().unwrap();
    let url = server.url();
    let slots = slots(&url);
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder.args(["--exact", "slots::a_process_that_holds_a_slot"]);
    let mut holder = holder.env(ADDRESS, &url).spawn().unwrap();
    while slots.status("k").await.unwrap().used() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Held for longer than a window.
    let denied = slots.acquire("k").within(Duration::from_secs(7)).await;
    assert!(!denied.unwrap().is_allowed());
    holder.kill().unwrap();
    holder.wait().unwrap();
    let denied = slots.acquire("k").await.unwrap();
    let wait = denied.retry_after().unwrap();
    assert!(wait <= Duration::from_secs(3), "{wait:?}");
    // The call itself takes time, too.
    let taken = slots.acquire("k").within(Duration::from_secs(4)).await;
    assert!(taken.unwrap().is_allowed());
}
