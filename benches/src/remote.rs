//! Decisions in Redis: server time, throughput and latency of clients, and bytes. Starts its own server;
//! `LIMITER_REDIS_SERVER` selects the binary.

mod contestants;
mod run;
mod scenario;

use anyhow::Context;
use limiter_testkit::server::Server;

pub use self::scenario::Scenario;
use crate::declared::REDIS;
use crate::record::{Measured, Results};
use crate::turns::Effort;

/// Measures the scenarios whose names contain `only`.
pub(crate) fn measure(effort: &Effort, only: Option<&str>) -> Measured {
    let server = Server::start().context("cannot start a server for the Redis group")?;
    let info = server.info("server")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let mut results = Results::new();
    for scenario in REDIS.scenarios.iter().filter(|scenario| wanted(&scenario.name)) {
        eprintln!("{}", scenario.name);
        let scenario = scenario.clone().within(effort)?;
        let figures = run::measure(&runtime, &server.url(), &scenario, effort);
        results.insert(scenario.name.clone(), figures.with_context(|| scenario.name)?);
    }
    Ok((results, Some(describe(&info))))
}

/// Returns `Redis 7.0.15` or `Valkey 8.1.4`, for example, from `INFO server`.
fn describe(info: &str) -> String {
    match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
