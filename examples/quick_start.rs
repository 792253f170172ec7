//! Three requests a second for each customer, in this process: `cargo run --example quick_start`.

use std::time::Duration;

use limiter::{Limit, Limiter, MemoryStore};

fn main() -> Result<(), limiter::Error> {
    let limiter = Limiter::new(MemoryStore::new(), Limit::per_second(3)?);

    for request in 1..=4 {
        let decision = limiter.acquire_now("customer 7");
        match decision.retry_after() {
            None => println!("request {request}: allowed, {} remaining", decision.remaining()),
            Some(wait) => println!("request {request}: denied, the next fits in {} ms", wait.as_millis()),
        }
        assert_eq!(decision.allowed(), request <= 3);
    }

    let looked = limiter.peek_now("customer 7");
    println!("a look consumes nothing: {} of {} used", looked.used(), looked.limit());

    let decision = limiter.ready_now("customer 7", Duration::from_secs(2));
    println!("waited for the window to move on: {}", if decision.allowed() { "allowed" } else { "denied" });
    assert!(decision.allowed());

    // The call failed and shall not count: give its unit back.
    let refunded = decision.receipt().is_some_and(|receipt| limiter.refund_now("customer 7", receipt));
    println!("refunded: {refunded}");
    assert!(refunded);
    Ok(())
}
