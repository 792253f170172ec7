//! Task priorities from usage: a queue serves customers with little usage in the last hour first, and denies nobody.
//! `cargo run --example task_priority`

use std::collections::BinaryHeap;
use std::time::Duration;

use limiter::time::Timestamp;
use limiter::{Limit, Limiter, MemoryStore};

/// Each band is `(below, priority)`: a customer with fewer than `below` tasks in the last hour gets `priority`.
///
/// Priority 3 is served first. Customers above all bands get priority 0.
const BANDS: [(u64, u8); 3] = [(2, 3), (10, 2), (50, 1)];

fn priority(used_before: u64) -> u8 {
    BANDS.iter().find(|(below, _)| used_before < *below).map_or(0, |(_, priority)| *priority)
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    priority: u8,
    /// Reversed, so that the earlier of two tasks with equal priority is served first.
    order: std::cmp::Reverse<usize>,
    customer: &'static str,
}

fn main() -> Result<(), limiter::Error> {
    // A meter counts without limiting. The usage that a record returns includes the recorded task.
    let tasks = Limiter::new("tasks", Limit::meter(Duration::from_secs(3600))?, MemoryStore::new());
    let mut queue = BinaryHeap::new();

    // A batch job submits sixty tasks within a minute, then two people submit one task each.
    let batch = (0..60).map(|second| (second, "batch job"));
    for (order, (second, customer)) in batch.chain([(60, "ann"), (61, "ben")]).enumerate() {
        let at = Timestamp::from_micros(second * 1_000_000)?;
        let usage = tasks.record(customer).at(at).now()?;
        let priority = priority(usage.used() - 1);
        queue.push(Task { priority, order: std::cmp::Reverse(order), customer });
    }

    let served: Vec<Task> = std::iter::from_fn(|| queue.pop()).collect();
    for priority in (0..=3).rev() {
        let customers: Vec<&str> = served.iter().filter(|t| t.priority == priority).map(|t| t.customer).collect();
        let (batch, others): (Vec<&str>, Vec<&str>) = customers.iter().partition(|customer| **customer == "batch job");
        println!("priority {priority}: {} batch tasks, then {others:?}", batch.len());
    }
    let position = |customer| served.iter().position(|task| task.customer == customer);
    println!("the queue serves ann at index {:?} of {} tasks", position("ann"), served.len());
    assert_eq!((position("ann"), position("ben")), (Some(2), Some(3)));
    Ok(())
}
