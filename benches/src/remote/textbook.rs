//! The limiter beside the textbook's sorted set: the server's time by the length of the log, and what is admitted when members
//! collide.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use limiter_core::{Limit, Policy, Timestamp};
use limiter_testkit::server::Server;
use redis::aio::ConnectionManager;
use serde::{Deserialize, Serialize};

use super::contestants::{Contestant, Ours, connect};
use super::effort::Effort;
use super::server_time::{MAX_IN_FLIGHT, Spread, processor};
use super::sorted_set::{Form, Member, SortedSet};

pub(super) const NAME: &str = "textbook";
const ENTRIES: [u64; 3] = [100, 1000, 100_000];
/// So long that nothing expires during a measurement.
const WINDOW: Duration = Duration::from_secs(86_400);
const PLENTY: u64 = 10_000_000;
/// How many keys share the decisions of a turn, so that their logs hardly grow.
const KEYS: u64 = 50;
/// How many requests come at each microsecond, how many in all, and how many of them the limit admits.
const AT_ONCE: u64 = 10;
const OFFERED: u64 = 1000;
const MAX: u64 = 100;

/// The server's time for one kind of decision on logs of one length.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Lengths {
    /// The entries in a log.
    pub entries: u64,
    /// Whether the decisions are allowed.
    pub allowed: bool,
    /// By contestant: microseconds a decision in scripts and transactions, and their ratio to the limiter's, round by round.
    pub spent: Vec<(String, f64, f64)>,
    /// The same of the server's processor time, which includes reading requests and writing replies.
    pub processor: Vec<(String, f64, f64)>,
}

/// What is admitted in one window if several requests come in each microsecond.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Collisions {
    /// How many units the limit admits in any window.
    pub max: u64,
    /// How many requests come within the window.
    pub offered: u64,
    /// How many of them come at each microsecond.
    pub at_once: u64,
    /// By contestant: how many were admitted.
    pub admitted: Vec<(String, u64)>,
}

/// All that was measured beside the textbook.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Textbook {
    /// The server's time.
    pub lengths: Vec<Lengths>,
    /// What is admitted.
    pub collisions: Collisions,
}

/// Measures all lengths, and then what is admitted.
pub(super) async fn measure(server: &Server, effort: Effort) -> Result<Textbook> {
    let connection = connect(&server.url()).await?;
    let mut lengths = Vec::new();
    for entries in ENTRIES {
        let entries = entries.min(effort.keys as u64);
        for allowed in [true, false] {
            lengths.push(length(&connection, entries, allowed, effort).await?);
        }
    }
    Ok(Textbook { lengths, collisions: collisions(&connection).await? })
}

async fn length(connection: &ConnectionManager, entries: u64, allowed: bool, effort: Effort) -> Result<Lengths> {
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    let max = if allowed { PLENTY } else { entries };
    let ours = Ours::new(connection.clone(), Limit::new(max, WINDOW)?.into())?;
    let set = |form| SortedSet::new(connection.clone(), form, Member::Unique, max, WINDOW);
    let (script, transaction) = (set(Form::Script), set(Form::Transaction));
    let keys: Vec<String> = (0..(100_000 / entries).clamp(1, KEYS)).map(|key| format!("{key:016}")).collect();
    let contestants: [(&dyn Contestant, Vec<Vec<u8>>); 3] = [
        (&ours, keys.iter().map(|key| ours.stored(key)).collect()),
        (&script, keys.iter().map(|key| script.stored(key).into_bytes()).collect()),
        (&transaction, keys.iter().map(|key| transaction.stored(key).into_bytes()).collect()),
    ];
    for (contestant, stored) in &contestants {
        offer(*contestant, &keys[..1], entries as usize, true).await?;
        for to in &stored[1..] {
            let done: u64 = redis::cmd("COPY").arg(&stored[0]).arg(to).query_async(&mut connection.clone()).await?;
            ensure!(done == 1, "a key could not be copied");
        }
    }
    let mut samples = [const { [const { Vec::new() }; 3] }; 2];
    for round in 0..effort.rounds {
        for turn in 0..3 {
            let who = (round + turn * (1 + round % 2)) % 3;
            let (contestant, stored) = &contestants[who];
            offer(*contestant, &keys, MAX_IN_FLIGHT, allowed).await?;
            let before = [spent(connection).await?, processor(connection).await?];
            offer(*contestant, &keys, effort.calls, allowed).await?;
            let after = [processor(connection).await?, spent(connection).await?];
            for (kind, (before, after)) in before.into_iter().zip(after.into_iter().rev()).enumerate() {
                samples[kind][who].push((after - before) / effort.calls as f64);
            }
            for key in stored {
                // The log as it was before the turn.
                let mut trim = redis::cmd("ZREMRANGEBYRANK");
                trim.arg(key).arg(entries).arg(-1).exec_async(&mut connection.clone()).await?;
            }
        }
    }
    let [spent, processor] = samples.map(|samples| {
        let medians = contestants.iter().zip(&samples).map(|((contestant, _), own)| {
            let ratios = own.iter().zip(&samples[0]).map(|(own, ours)| own / ours);
            (contestant.name().to_owned(), Spread::of(own.iter().copied()).median, Spread::of(ratios).median)
        });
        medians.collect()
    });
    Ok(Lengths { entries, allowed, spent, processor })
}

/// Makes `count` decisions, and asserts each.
pub(super) async fn offer(contestant: &dyn Contestant, keys: &[String], count: usize, allowed: bool) -> Result<()> {
    for first in (0..count).step_by(MAX_IN_FLIGHT) {
        let flight =
            (first..count.min(first + MAX_IN_FLIGHT)).map(|i| contestant.decide(&keys[i % keys.len()], 1, allowed));
        try_join_all(flight).await.with_context(|| contestant.name())?;
    }
    Ok(())
}

/// The server's microseconds in scripts and transactions until now.
pub(super) async fn spent(connection: &ConnectionManager) -> Result<f64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection.clone()).await?;
    let of = |command: &str| {
        let (_, line) = info.split_once(&format!("cmdstat_{command}:"))?;
        line.lines().next()?.split(',').find_map(|field| field.strip_prefix("usec="))?.parse::<u64>().ok()
    };
    Ok(["evalsha", "multi", "exec"].into_iter().filter_map(of).sum::<u64>() as f64)
}

async fn collisions(connection: &ConnectionManager) -> Result<Collisions> {
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    let start = 1_700_000_000_000_000;
    let ours = Ours::new(connection.clone(), Policy::from(Limit::new(MAX, WINDOW)?))?;
    let set = |form| SortedSet::new(connection.clone(), form, Member::Time, MAX, WINDOW);
    let sets = [set(Form::Script), set(Form::Transaction)];
    let mut admitted = [0; 3];
    for n in 0..OFFERED {
        let now = start + n / AT_ONCE;
        let decision = ours.0.acquire("k").at(Timestamp::from_micros(now)?).await?;
        admitted[0] += u64::from(decision.allowed());
        for (set, admitted) in sets.iter().zip(&mut admitted[1..]) {
            *admitted += u64::from(set.decide_at("k", now).await?);
        }
    }
    let names = [Ours::NAME, SortedSet::SCRIPT, SortedSet::TRANSACTION].map(str::to_owned);
    let admitted = names.into_iter().zip(admitted).collect();
    Ok(Collisions { max: MAX, offered: OFFERED, at_once: AT_ONCE, admitted })
}
