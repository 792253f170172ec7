//! A batch of acquires: one by one, and with `acquire_many`.

use std::time::Instant;

use anyhow::{Result, ensure};
use limiter_core::Limit;
use limiter_testkit::server::Server;
use serde::{Deserialize, Serialize};

use super::contestants::{Ours, connect};
use super::effort::Effort;
use super::server_time::Spread;
use crate::workload::keys;

pub(super) const NAME: &str = "batch";
const SIZES: [usize; 3] = [1, 10, 100];

/// The medians for batches of one size.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Batched {
    /// The number of acquires in a batch, each of another key.
    pub size: usize,
    /// Microseconds per batch, each acquire after the answer to the one before.
    pub one_by_one: f64,
    /// Microseconds per batch with `acquire_many`.
    pub together: f64,
    /// The ratio of the latter to the former, round by round.
    pub ratio: f64,
}

/// Measures all sizes.
pub(super) async fn measure(server: &Server, effort: Effort) -> Result<Vec<Batched>> {
    let connection = connect(&server.url()).await?;
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    let limiter = Ours::new(connection, Limit::per_hour(10_000_000)?.into())?.0;
    let mut rows = Vec::new();
    for size in SIZES {
        let keys = keys(size);
        let batches = (effort.client_calls / 4 / size).max(1);
        let mut turns = Vec::new();
        for round in 0..=effort.client_rounds {
            let start = Instant::now();
            for _ in 0..batches {
                for key in keys.iter() {
                    ensure!(limiter.acquire(key).await?.allowed(), "{key} is used up");
                }
            }
            let middle = Instant::now();
            for _ in 0..batches {
                for result in limiter.acquire_many(keys.iter().map(|key| (key, 1))).await {
                    ensure!(result?.allowed(), "a key is used up");
                }
            }
            let per_batch = |time: std::time::Duration| time.as_secs_f64() * 1e6 / batches as f64;
            // The first round creates the keys.
            if round > 0 {
                turns.push((per_batch(middle - start), per_batch(middle.elapsed())));
            }
        }
        let median = |of: fn(&(f64, f64)) -> f64| Spread::of(turns.iter().map(of)).median;
        rows.push(Batched {
            size,
            one_by_one: median(|turn| turn.0),
            together: median(|turn| turn.1),
            ratio: median(|turn| turn.1 / turn.0),
        });
    }
    Ok(rows)
}
