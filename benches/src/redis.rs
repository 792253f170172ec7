//! Decisions in Redis: server time and bytes. Starts its own server;
//! `LIMITER_REDIS_SERVER` selects the binary.

mod decider;
mod log;
mod run;
pub(crate) mod scenario;

use anyhow::{Context, Result};
use testbed::server::Server;

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

/// Returns `Redis 7.0.15` or `Valkey 8.1.4`, for example, from `INFO server`.
fn version(info: &str) -> String {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    }
}
