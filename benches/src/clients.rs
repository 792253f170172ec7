//! Clients of a server, each with one request in flight.

use std::time::Instant;

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};

use crate::turns::Turn;

/// Makes `count` calls, and keeps so many of them in flight. Returns the calls per second, and the median and the 99th
/// percentile of their latencies in µs.
pub(crate) async fn offer<C>(count: usize, in_flight: usize, call: impl Fn(usize) -> C) -> Result<Turn>
where
    C: Future<Output = Result<()>>,
{
    let timed = async |number| {
        let start = Instant::now();
        call(number).await?;
        anyhow::Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let start = Instant::now();
    let calls = stream::iter(0..count).map(timed).buffer_unordered(in_flight);
    let mut latencies: Vec<f64> = calls.try_collect::<Vec<_>>().await?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    latencies.sort_by(f64::total_cmp);
    let at = |percent: usize| latencies[(count * percent / 100).min(count - 1)];
    Ok(vec![("rate", rate), ("half", at(50)), ("p99", at(99))])
}
