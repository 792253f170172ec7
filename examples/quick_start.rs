//! Three requests a second for each customer, in this process: `cargo run --example quick_start`.

use std::time::Duration;

use limiter::{Limiter, MemoryStore, policy};

fn main() -> Result<(), limiter::Error> {
    let search = Limiter::new("search", policy!("3/1s"), MemoryStore::new());

    for request in 1..=4 {
        let decision = search.acquire("customer 7").now()?;
        match decision.retry_after() {
            None => println!("request {request}: allowed, {} remaining", decision.remaining()),
            Some(wait) => println!("request {request}: denied, the next fits in {} ms", wait.as_millis()),
        }
        assert_eq!(decision.allowed(), request <= 3);
    }

    let status = search.status("customer 7").now()?;
    println!("reading the status consumes nothing: {} of {} used", status.used(), status.limit());

    // Waits until the window has moved on, and admits.
    let Ok(permit) = search.acquire("customer 7").within(Duration::from_secs(2)).permit().now()? else {
        panic!("a unit frees within a second");
    };
    println!("waited and got a permit: {} of 3 used", permit.decision().used());

    // The call failed and should not count, so give its unit back.
    let refunded = permit.refund().now();
    println!("refunded: {} of 3 used", refunded.status().used());
    assert!(refunded.applied());
    Ok(())
}
