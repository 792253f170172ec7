//! Decisions in Redis: server time and bytes. Starts its own server;
//! `LIMITER_REDIS_SERVER` selects the binary.

mod decider;
mod log;
mod run;
pub(crate) mod scenario;

use anyhow::{Context, Result};
use testbed::server::Server;

pub(crate) use self::decider::{connect, store};
use self::scenario::REDIS;
use crate::turns::Run;

/// Measures all scenarios.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    let server = Server::start().context("cannot start a server for the Redis group")?;
    run.server = Some(version(&server.info("server")?));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    REDIS.scenarios.iter().try_for_each(|scenario| {
        run.scenario(&scenario.name, || {
            run::measure(&runtime, &server.url(), scenario)
        })
    })
}

/// Returns the number of scripts that the server has run by digest, and the microseconds in them, from `INFO commandstats`.
pub(crate) fn scripts(info: &str) -> (u64, u64) {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"))
        .unwrap_or_default();
    let field = |name| {
        line.split(',')
            .find_map(|field| field.strip_prefix(name)?.parse().ok())
            .unwrap_or_default()
    };
    (field("calls="), field("usec="))
}

/// Returns the microseconds of CPU time that the server has taken, from `INFO cpu`.
pub(crate) fn processor(info: &str) -> Result<f64> {
    let of = |name| field(info, name)?.parse::<f64>().ok();
    let both = of("used_cpu_user").zip(of("used_cpu_sys"));
    let (user, system) =
        both.with_context(|| format!("INFO cpu lacks used_cpu_user and used_cpu_sys:\n{info}"))?;
    Ok((user + system) * 1e6)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim())
}

/// Returns `Redis 7.0.15` or `Valkey 8.1.4`, for example, from `INFO server`.
pub(crate) fn version(info: &str) -> String {
    match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    }
}
