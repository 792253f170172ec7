//! Measures a group of scenarios.

use anyhow::Result;

use crate::record::{Group, Record};
use crate::turns::Run;
use crate::{http, memory, redis, service};

/// Measures the scenarios of a group whose names contain `only`.
///
/// # Errors
/// If a result is not as expected, or a server cannot be started.
pub fn measure(group: Group, only: Option<&str>) -> Result<Record> {
    let mut run = Run::new(only);
    let (measured, crates): (_, &[&str]) = match group {
        Group::Memory => {
            (memory::measure(&mut run), &["limiter-memory", "governor", "trypema", "limitador", "throttlecrab"])
        }
        Group::Surface => (memory::surface::measure(&mut run), &["limiter-memory", "governor", "foldhash", "trypema"]),
        Group::Redis => (redis::measure(&mut run), &["limiter-redis", "redis"]),
        Group::Http => (http::measure(&mut run), &["limiter-tower", "tower_governor", "axum"]),
        Group::Service => (service::measure(&mut run), &["limiter-server", "tonic"]),
    };
    measured?;
    Ok(Record::new(run.server, crates, run.results))
}
