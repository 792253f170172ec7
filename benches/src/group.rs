//! The groups of scenarios.

use anyhow::Result;
use clap::ValueEnum;

use crate::record::Record;
use crate::turns::Run;
use crate::{http, lease, memory, postgres, redis, service};

/// Scenarios that are measured together, into a record for every CPU family.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Group {
    /// Decisions in memory: time, over-admission, bytes, and a flood of keys.
    Memory,
    /// Decisions in memory over the number of keys, the entries of each log, the verdict and the threads.
    Surface,
    /// Decisions in Redis, on a redis-server that the program starts. `LIMITER_REDIS_SERVER` selects the binary.
    Redis,
    /// Decisions over Redis with and without a lease, on a redis-server that the program starts.
    Lease,
    /// Decisions in Postgres, and in a transaction that locks the row, on a server that the program starts in the folder for temporary
    /// files. `LIMITER_POSTGRES_BIN` selects the binaries.
    Postgres,
    /// Requests through axum.
    Http,
    /// Requests to `limiter-server` over gRPC.
    Service,
}

type Measure = fn(&mut Run<'_>) -> Result<()>;

impl Group {
    /// Returns the name of its records, and of the program's argument that selects it.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Measures the scenarios whose names contain `only`.
    ///
    /// # Errors
    /// If a result is not as expected, or a server cannot be started.
    pub fn measure(self, only: Option<&str>) -> Result<Record> {
        let (measure, crates): (Measure, &[&str]) = match self {
            Self::Memory => (
                memory::measure,
                &[
                    "limiter-memory",
                    "governor",
                    "trypema",
                    "limitador",
                    "throttlecrab",
                ],
            ),
            Self::Surface => (
                memory::surface::measure,
                &["limiter-memory", "governor", "foldhash", "trypema"],
            ),
            Self::Redis => (redis::measure, &["limiter-redis", "redis"]),
            Self::Lease => (
                lease::measure,
                &["limiter-wrappers", "limiter-redis", "redis"],
            ),
            Self::Postgres => (
                postgres::measure,
                &["limiter-postgres", "limiter-wrappers", "tokio-postgres"],
            ),
            Self::Http => (http::measure, &["limiter-tower", "tower_governor", "axum"]),
            Self::Service => (service::measure, &["limiter-server", "tonic"]),
        };
        let mut run = Run::new(only);
        measure(&mut run)?;
        Ok(Record::new(run.server, crates, run.results))
    }
}
