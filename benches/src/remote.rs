//! The limiter in Redis beside scripts and peers: the server's time per decision, clients' throughput and latency, and
//! bytes. It starts its own server; `LIMITER_REDIS_SERVER` names the binary.

mod clients;
mod contestants;
mod memory;
mod report;
mod server_time;
mod shapes;

use std::time::Duration;

use anyhow::{Context, Result};
use limiter_testkit::server::Server;

pub use clients::{Load, Served};
pub use memory::Bytes;
pub use report::Results;
pub use server_time::{Row, Spread};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How often each contestant has its turn.
    pub rounds: usize,
    /// Decisions in a turn: few, so that most turns are over before the machine does something else.
    pub calls: usize,
    /// How many keys "many keys" are.
    pub keys: usize,
    /// How often each contestant has its turn with clients' tasks.
    pub client_rounds: usize,
    /// Decisions in such a turn, of one task; four times as many of more tasks.
    pub client_calls: usize,
}

impl Effort {
    /// Within two minutes.
    pub const QUICK: Self = Self { rounds: 151, calls: 300, keys: 100_000, client_rounds: 15, client_calls: 2000 };
    /// More turns.
    pub const FULL: Self = Self { rounds: 381, calls: 200, keys: 100_000, client_rounds: 61, client_calls: 3000 };
    /// Whether everything works.
    pub const TEST: Self = Self { rounds: 2, calls: 20, keys: 200, client_rounds: 2, client_calls: 300 };
}

/// Long, because the machine may be busy with other work.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a server and measures everything whose name contains `only`.
///
/// # Errors
/// If there is no server to start, or it does not answer as expected.
pub fn measure(effort: Effort, only: Option<&str>) -> Result<Results> {
    let server = Server::start().context("the Redis group needs a server")?;
    let version = server_version(&server.info("server")?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut results = Results { version, ..Results::default() };
        let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
        for shape in shapes::all().into_iter().filter(|shape| wanted(shape.name)) {
            eprintln!("{}: {}", shape.name, shape.about);
            let row = server_time::measure(&server, &shape, effort).await;
            results.rows.push(row.with_context(|| shape.name)?);
        }
        for (name, tasks) in clients::TASKS.into_iter().filter(|(name, _)| wanted(name)) {
            eprintln!("{name}");
            results.loads.push(clients::measure(&server, (name, tasks), effort).await.context(name)?);
        }
        if wanted(memory::NAME) {
            results.bytes = memory::measure(&server).await.context(memory::NAME)?;
        }
        Ok(results)
    })
}

/// `Redis 7.0.15` or `Valkey 8.1.4`, of `INFO server`.
fn server_version(info: &str) -> String {
    match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether the server can do what Redis of this version can. Valkey names the one that it descends from.
fn at_least(info: &str, wanted: (u32, u32)) -> bool {
    let mut parts = field(info, "redis_version").unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= wanted
}
