//! Priorities from usage: a queue serves customers first who have used little in the last hour. Nobody is denied.
//! `cargo run --example task_priority`

use std::collections::BinaryHeap;
use std::time::Duration;

use limiter::time::Timestamp;
use limiter::{Limit, Limiter, MemoryStore};

/// For each priority, the number of earlier tasks in the last hour below which it applies. 3 is served first, 0 last.
const BANDS: [(u64, u8); 3] = [(2, 3), (10, 2), (50, 1)];

fn priority(used_before: u64) -> u8 {
    BANDS.iter().find(|(up_to, _)| used_before < *up_to).map_or(0, |(_, priority)| *priority)
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    priority: u8,
    /// Of equal priorities, the earlier task goes first.
    order: std::cmp::Reverse<usize>,
    customer: &'static str,
}

fn main() -> Result<(), limiter::Error> {
    // A meter is a limit that nothing reaches. A record never denies, and its usage includes the task just counted.
    let tasks = Limiter::new("tasks", Limit::meter(Duration::from_secs(3600))?, MemoryStore::new());
    let mut queue = BinaryHeap::new();

    // A batch job submits sixty tasks within a minute, then two people ask for one each.
    let batch = (0..60).map(|second| (second, "batch job"));
    for (order, (second, customer)) in batch.chain([(60, "ann"), (61, "ben")]).enumerate() {
        let at = Timestamp::from_micros(second * 1_000_000)?;
        let usage = tasks.record(customer).at(at).now()?;
        let priority = priority(usage.used() - 1);
        queue.push(Task { priority, order: std::cmp::Reverse(order), customer });
    }

    let served: Vec<Task> = std::iter::from_fn(|| queue.pop()).collect();
    for priority in (0..=3).rev() {
        let of_this: Vec<&str> = served.iter().filter(|t| t.priority == priority).map(|t| t.customer).collect();
        let batch = of_this.iter().filter(|customer| **customer == "batch job").count();
        let others: Vec<&&str> = of_this.iter().filter(|customer| **customer != "batch job").collect();
        println!("priority {priority}: {batch} tasks of the batch job, then {others:?}");
    }
    let place = |customer| served.iter().position(|task| task.customer == customer);
    println!("ann is served as number {:?} of {}", place("ann").map(|i| i + 1), served.len());
    assert_eq!((place("ann"), place("ben")), (Some(2), Some(3)));
    Ok(())
}
