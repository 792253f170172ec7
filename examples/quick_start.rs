//! Three requests per second for each customer, in memory: `cargo run --example quick_start`.

use exact_limiter::{Limiter, MemoryStore, policy};

fn main() -> Result<(), exact_limiter::Error> {
    let search = Limiter::new("search", policy!("3/1s"), MemoryStore::new());

    for request in 1..=4 {
        let decision = search.acquire("customer 7").now()?;
        match decision.retry_after() {
            None => println!(
                "request {request}: allowed, {} remaining",
                decision.remaining()
            ),
            Some(wait) => println!(
                "request {request}: denied, retry in {} ms",
                wait.as_millis()
            ),
        }
        assert_eq!(decision.is_allowed(), request <= 3);
    }

    let status = search.status("customer 7").now()?;
    println!(
        "status, which consumes no unit: {} of {} used",
        status.used(),
        status.limit()
    );

    // Waits until the acquire fits. In a runtime, `within` waits without blocking the thread.
    let permit = loop {
        match search.acquire("customer 7").permit().now()?.into_result() {
            Ok(permit) => break permit,
            Err(denied) => std::thread::sleep(denied.retry_after()),
        }
    };
    println!(
        "waited and got a permit: {} of 3 used",
        permit.decision().used()
    );

    // Suppose that the work failed and should not count.
    let refunded = permit.refund().now()?;
    println!("refunded: {} of 3 used", refunded.status().used());
    assert!(refunded.applied());
    Ok(())
}
