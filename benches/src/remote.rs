//! Decisions in Redis: server time, throughput and latency of clients, and bytes. Starts its own server;
//! `LIMITER_REDIS_SERVER` selects the binary.

mod contestants;
mod run;
pub(crate) mod scenario;

use anyhow::{Context, Result};
use limiter_core::{Policy, Timestamp, policy};
use limiter_testkit::server::Server;

use self::contestants::{SortedSet, connect, limiter};
use crate::declared::REDIS;
use crate::record::{Figures, Measured, Results, put};
use crate::turns::Effort;

/// The scenario in which several requests come in each microsecond.
pub(crate) const COLLISIONS: &str = "textbook/collisions";
/// Its limit, how many requests come within the window, and how many at each microsecond.
const LIMIT: Policy = policy!("100/1d");
const OFFERED: u64 = 1000;
const AT_ONCE: u64 = 10;

/// Measures the scenarios whose names contain `only`.
pub(crate) fn measure(effort: &Effort, only: Option<&str>) -> Measured {
    let server = Server::start().context("cannot start a server for the Redis group")?;
    let info = server.info("server")?;
    // trypema needs Redis 7.2.
    let recent = is_at_least(&info, (7, 2));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let mut results = Results::new();
    for scenario in REDIS.scenarios.iter().filter(|scenario| wanted(&scenario.name)) {
        eprintln!("{}", scenario.name);
        let mut scenario = scenario.clone().within(effort)?;
        scenario.who.retain(|who| who != "trypema" || recent);
        let figures = run::measure(&runtime, &server.url(), &scenario, effort);
        results.insert(scenario.name.clone(), figures.with_context(|| scenario.name)?);
    }
    if wanted(COLLISIONS) {
        eprintln!("{COLLISIONS}");
        results.insert(COLLISIONS.to_owned(), runtime.block_on(collisions(&server.url())).context(COLLISIONS)?);
    }
    Ok((results, Some(describe(&info))))
}

/// Counts what is admitted in one window if several requests come in each microsecond, and the time tells members apart.
async fn collisions(url: &str) -> Result<Figures> {
    let connection = connect(url).await?;
    redis::cmd("FLUSHALL").exec_async(&mut connection.clone()).await?;
    let ours = limiter("bench", connection.clone(), LIMIT, false)?;
    let sets = [false, true].map(|multi| SortedSet::new(connection.clone(), &LIMIT, multi, false));
    let mut admitted = [0_u32; 3];
    for n in 0..OFFERED {
        let now = 1_700_000_000_000_000 + n / AT_ONCE;
        let decision = ours.acquire("k").at(Timestamp::from_micros(now)?).await?;
        admitted[0] += u32::from(decision.allowed());
        for (set, admitted) in sets.iter().zip(&mut admitted[1..]) {
            *admitted += u32::from(set.decide_at("k", now).await?);
        }
    }
    let mut figures = Figures::new();
    for (who, admitted) in ["limiter", "sorted set, script", "sorted set, MULTI"].into_iter().zip(admitted) {
        put(&mut figures, who, "admitted", f64::from(admitted));
    }
    Ok(figures)
}

/// Returns `Redis 7.0.15` or `Valkey 8.1.4`, for example, from `INFO server`.
fn describe(info: &str) -> String {
    match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    }
}

/// Whether the server is compatible with this version of Redis. Valkey states the version that it is based on.
fn is_at_least(info: &str, wanted: (u32, u32)) -> bool {
    let mut parts = field(info, "redis_version").unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= wanted
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
