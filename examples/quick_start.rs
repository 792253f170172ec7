//! Three requests per second for each customer, in memory: `cargo run --example quick_start`.

use std::time::Duration;

use exact_limiter::{Limiter, MemoryStore, policy};

fn main() -> Result<(), exact_limiter::Error> {
    let search = Limiter::new("search", policy!("3/1s"), MemoryStore::new());

    for request in 1..=4 {
        let decision = search.acquire("customer 7").now()?;
        match decision.retry_after() {
            None => println!("request {request}: allowed, {} remaining", decision.remaining()),
            Some(wait) => println!("request {request}: denied, retry in {} ms", wait.as_millis()),
        }
        assert_eq!(decision.allowed(), request <= 3);
    }

    let status = search.status("customer 7").now()?;
    println!("status, which consumes nothing: {} of {} used", status.used(), status.limit());

    // Blocks this thread until the acquire fits.
    let Ok(permit) = search.acquire("customer 7").within(Duration::from_secs(2)).permit().blocking()?.into_result()
    else {
        panic!("a unit becomes available within one second, so the acquire fits within two");
    };
    println!("waited and got a permit: {} of 3 used", permit.decision().used());

    // Suppose that the work failed and should not count.
    let refunded = permit.refund().now()?;
    println!("refunded: {} of 3 used", refunded.status().used());
    assert!(refunded.applied());
    Ok(())
}
