//! The groups of scenarios.

use anyhow::Result;

use crate::declared::Goal;
use crate::turns::Run;
use crate::{lease, memory, postgres, redis};

/// Scenarios that are measured together, into a record for every CPU family.
pub struct Group {
    /// The name of its records, and of the program's argument that selects it.
    pub name: &'static str,
    /// What it measures, in the program's help.
    pub about: &'static str,
    /// Measures the scenarios.
    pub measure: fn(&mut Run<'_>) -> Result<()>,
    /// The crates whose versions belong to the record.
    pub crates: &'static [&'static str],
    /// Returns the most that its figures may be.
    pub goals: fn() -> &'static [Goal],
}

/// The groups of the library.
pub(crate) const GROUPS: [Group; 5] = [
    Group {
        name: "memory",
        about: "Decisions in memory: time, over-admission, bytes, and a flood of keys",
        measure: memory::measure,
        crates: &[
            "limiter-memory",
            "governor",
            "trypema",
            "limitador",
            "throttlecrab",
        ],
        goals: || &memory::MEMORY.goals,
    },
    Group {
        name: "surface",
        about: "Decisions in memory by the number of keys, the entries of each log, the verdict and the threads",
        measure: memory::surface::measure,
        crates: &["limiter-memory", "governor", "foldhash", "trypema"],
        goals: || &[],
    },
    Group {
        name: "redis",
        about: "Decisions in Redis, on a redis-server that the program starts. LIMITER_REDIS_SERVER selects the binary",
        measure: redis::measure,
        crates: &["limiter-redis", "redis"],
        goals: || &redis::scenario::REDIS.goals,
    },
    Group {
        name: "lease",
        about: "Decisions in Redis with and without a lease, on a redis-server that the program starts",
        measure: lease::measure,
        crates: &["limiter-wrappers", "limiter-redis", "redis"],
        goals: || &[],
    },
    Group {
        name: "postgres",
        about: "Decisions in Postgres, and in a transaction that locks the row, on a server that the program starts in the folder for temporary files. LIMITER_POSTGRES_BIN selects the binaries",
        measure: postgres::measure,
        crates: &["limiter-postgres", "limiter-wrappers", "tokio-postgres"],
        goals: || &[],
    },
];
