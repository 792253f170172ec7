//! One hot key with and without group commit: the server's processor time, and what clients see.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use limiter_core::{Limit, Policy};
use limiter_testkit::server::Server;
use redis::aio::ConnectionManager;
use serde::{Deserialize, Serialize};

use super::clients::{Turn, offer};
use super::contestants::{Contestant, Ours, connect};
use super::effort::Effort;
use super::server_time::{Spread, processor};

pub(super) const NAME: &str = "group_commit";
const TASKS: [usize; 2] = [1, 128];
/// The goal: the highest acceptable ratio of processor time with the most tasks.
const GOAL: f64 = 0.25;
const PLENTY: u64 = 10_000_000;
const USED_UP: u64 = 100;
const DAY: Duration = Duration::from_secs(86_400);

/// The medians of one side's turns.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Side {
    /// Microseconds of the server's processor time per decision.
    pub processor: f64,
    /// Decisions per second.
    pub rate: f64,
    /// The median latency in microseconds.
    pub half: f64,
    /// The 99th percentile of the latency in microseconds.
    pub most: f64,
}

/// One load on one key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Grouped {
    /// The decisions.
    pub about: String,
    /// The number of tasks.
    pub tasks: usize,
    /// Without and with group commit.
    pub sides: [Side; 2],
    /// The ratio of processor time with group commit to that without, round by round.
    pub ratio: f64,
    /// The goal: the highest acceptable ratio.
    pub goal: Option<f64>,
}

/// A contestant and its key.
type KeyedContestant = (Arc<dyn Contestant>, Arc<Vec<String>>);

/// Measures all loads with all numbers of tasks.
pub(super) async fn measure(server: &Server, effort: Effort) -> Result<Vec<Grouped>> {
    let loads = [
        ("allowed, the log grows", PLENTY, DAY),
        ("allowed, entries expire after 100 ms", PLENTY, Duration::from_millis(100)),
        ("denied", USED_UP, DAY),
    ];
    let mut rows = Vec::new();
    for (about, max, window) in loads {
        for tasks in TASKS {
            let policy = Limit::new(max, window)?.into();
            rows.push(row(server, about, policy, tasks, effort).await?);
        }
    }
    Ok(rows)
}

async fn row(server: &Server, about: &str, policy: Policy, tasks: usize, effort: Effort) -> Result<Grouped> {
    let connection = connect(&server.url()).await?;
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    let allowed = policy.largest_max() > USED_UP;
    let sides: [KeyedContestant; 2] = [
        (Arc::new(Ours::new(connect(&server.url()).await?, policy.clone())?), Arc::new(vec!["alone".to_owned()])),
        (
            Arc::new(Ours::with_group_commit(connect(&server.url()).await?, policy.clone(), true)?),
            Arc::new(vec!["group".to_owned()]),
        ),
    ];
    for (contestant, keys) in &sides {
        // Uses the key up, or loads the scripts.
        offer(contestant, keys, tasks.min(USED_UP as usize), USED_UP as usize, true).await?;
    }
    let calls = if tasks == 1 { effort.client_calls } else { 4 * effort.client_calls };
    let mut turns = [const { Vec::new() }; 2];
    for round in 0..effort.client_rounds {
        for turn in 0..2 {
            let who = (round + turn) % 2;
            let (contestant, keys) = &sides[who];
            turns[who].push(one(&connection, contestant, keys, tasks, calls, allowed).await?);
        }
    }
    let ratio = Spread::of(turns[1].iter().zip(&turns[0]).map(|(with, without)| with.0 / without.0)).median;
    let sides = turns.map(|turns: Vec<(f64, Turn)>| {
        let median = |of: fn(&(f64, Turn)) -> f64| Spread::of(turns.iter().map(of)).median;
        Side {
            processor: median(|turn| turn.0),
            rate: median(|turn| turn.1.rate),
            half: median(|turn| turn.1.half),
            most: median(|turn| turn.1.most),
        }
    });
    let goal = (tasks == TASKS[TASKS.len() - 1]).then_some(GOAL);
    Ok(Grouped { about: about.to_owned(), tasks, sides, ratio, goal })
}

/// Makes one turn. Returns the processor time per decision too.
async fn one(
    connection: &ConnectionManager,
    contestant: &Arc<dyn Contestant>,
    keys: &Arc<Vec<String>>,
    tasks: usize,
    calls: usize,
    allowed: bool,
) -> Result<(f64, Turn)> {
    let before = processor(connection).await?;
    let turn = offer(contestant, keys, tasks, calls, allowed).await?;
    let after = processor(connection).await?;
    Ok(((after - before) / calls as f64, turn))
}
