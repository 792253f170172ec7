//! The denial cache never denies late, never admits early, and asks the store no more than it must.

use std::time::{Duration, Instant};

use crate::script::{Faulty, Scene, bare};
use limiter_core::{Limiter, policy};

/// The policy, the longest age of a denial in seconds, and the script.
const CASES: [(&str, u64, &str); 8] = [
    // A repeated denial needs no call, and its fields are exact. Another cost, policy, verb, id or key is another question.
    (
        "2/1h",
        1,
        "acquire k 2, acquire k 1 = denied, calls = 2, acquire k 1 = denied, acquire k 1 = denied, calls = 0, \
         shown k = 2 3599.997s, wait 100, shown k = 2 3599.897s, wait 100, shown k = 2 3599.797s, calls = 1, \
         acquire k 2 = denied, acquire k 1 by 9/1h, peek k = denied, acquire k 1 id 7 = denied, acquire other 1, \
         calls = 5",
    ),
    // A change through the wrapper shows immediately.
    (
        "2/1h",
        1,
        "acquire k 2, acquire k 1 = denied, settle 0 1 = true, acquire k 1, acquire k 1 = denied, settle 0 0 = true, \
         acquire k 1, acquire k 1 = denied, reset k = true, acquire k 2, acquire k 1 = denied, peek k = denied, \
         peek k = denied, calls = 12, record k = denied, peek k = denied, calls = 2",
    ),
    // A key that another process unblocks is denied until the denial is too old, or a unit is released.
    (
        "1/30d",
        1,
        "acquire k 1, acquire k 1 = denied, unblock k = true, wait 998, acquire k 1 = denied, acquire k 1",
    ),
    (
        "1/30d",
        5,
        "acquire k 1, acquire k 1 = denied, unblock k = true, wait 4998, acquire k 1 = denied, acquire k 1",
    ),
    (
        "1/1h",
        u64::MAX,
        "acquire k 1, acquire k 1 = denied, unblock k = true, wait 3599997, acquire k 1 = denied, acquire k 1",
    ),
    // If attempts count, any call may change the log.
    (
        "1/1h attempts",
        1,
        "acquire k 1, acquire k 1 = denied, acquire k 1 = denied, calls = 3",
    ),
    // Known denials continue during an outage.
    (
        "1/1h",
        1,
        "acquire k 1, acquire k 1 = denied, RRR, acquire k 1 = denied, acquire other 1 = refused",
    ),
    // One denial is held: another change leaves it, another denial replaces it.
    (
        "1/1h",
        1,
        "acquire a 1, acquire a 1 = denied, acquire b 1, acquire a 1 = denied, calls = 3, acquire b 1 = denied, \
         acquire b 1 = denied, acquire a 1 = denied, calls = 2",
    ),
];

#[tokio::test(start_paused = true)]
async fn the_denial_cache_does_what_it_says() {
    for (policy, seconds, script) in CASES {
        let ttl = Duration::from_secs(seconds);
        Scene::new(policy, |stack| {
            stack.denial_cache_capacity(1).denial_ttl(ttl).or_error()
        })
        .play(script)
        .await;
    }
}

/// Denied requests on one key. No window admits more than its maximum, released units are admitted again, and the store is asked again
/// only once a unit is released, or is known to be taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_reaches_the_store_about_as_often_as_units_are_released() {
    const TASKS: u64 = 8;
    let server = Faulty::default();
    let limiter = Limiter::new(
        "t",
        policy!("10/1s"),
        bare(server.clone()).denial_cache_capacity(10).or_error(),
    );
    let start = Instant::now();
    let flood = |limiter: Limiter<_>| async move {
        let mut admitted = Vec::new();
        let mut denied = 0_u64;
        while start.elapsed() < Duration::from_secs(2) || denied < 100_000 / TASKS {
            for _ in 0..100 {
                let decision = limiter.acquire("key").await.unwrap();
                denied += u64::from(!decision.is_allowed());
                admitted.extend(decision.is_allowed().then_some(decision.at().as_micros()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        admitted
    };
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| tokio::spawn(flood(limiter.clone())))
        .collect();
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.extend(task.await.unwrap());
    }
    admitted.sort_unstable();
    assert!(
        admitted
            .windows(11)
            .all(|window| window[10] - window[0] >= 1_000_000),
        "more than 10 within a second"
    );
    let free = 10 * start.elapsed().as_secs();
    let calls = server.calls() as u64;
    assert!(
        admitted.len() as u64 >= free * 3 / 4,
        "{} admitted of {free} that were free",
        admitted.len()
    );
    // Each unit that is released costs every task at most one call that finds it free or taken, and one denial to cache.
    assert!(
        calls <= 2 * TASKS * (free + 10),
        "{calls} calls for {free} units"
    );
}
