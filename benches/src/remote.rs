//! The limiter in Redis beside scripts and peers: what a decision costs the server, what a client gets of it, and bytes.
//! The server is one of its own, which `LIMITER_REDIS_SERVER` names.

mod contestants;
mod report;
mod server_time;
mod shapes;

use std::time::Duration;

use anyhow::{Context, Result};
use limiter_testkit::server::Server;

pub use report::Results;
pub use server_time::{Row, Spread};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How often each contestant has its turn.
    pub rounds: usize,
    /// Decisions in a turn.
    pub calls: usize,
    /// How many keys "many keys" are.
    pub keys: usize,
}

impl Effort {
    /// Within two minutes.
    pub const QUICK: Self = Self { rounds: 41, calls: 1000, keys: 100_000 };
    /// More turns.
    pub const FULL: Self = Self { rounds: 151, calls: 500, keys: 100_000 };
    /// Whether everything works.
    pub const TEST: Self = Self { rounds: 2, calls: 20, keys: 200 };
}

/// How long the server may take to answer on a machine that does other work as well.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a server and measures all that has a name with `only` in it.
///
/// # Errors
/// If there is no server to start, or it does not answer as expected.
pub fn measure(effort: Effort, only: Option<&str>) -> Result<Results> {
    let server = Server::start().context("the Redis group needs a server")?;
    let version = server_version(&server.info("server")?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let mut results = Results { version, ..Results::default() };
        let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
        for shape in shapes::all().into_iter().filter(|shape| wanted(shape.name)) {
            eprintln!("{}: {}", shape.name, shape.about);
            let row = server_time::measure(&server, &shape, effort).await;
            results.rows.push(row.with_context(|| shape.name)?);
        }
        Ok(results)
    })
}

/// `Redis 7.0.15` or `Valkey 8.1.4`, of `INFO server`.
fn server_version(info: &str) -> String {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    }
}
