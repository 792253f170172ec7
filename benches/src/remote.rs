//! Compares the limiter in Redis with scripts and peers: server time per decision, throughput and latency of clients,
//! and bytes. Starts its own server; `LIMITER_REDIS_SERVER` selects the binary.

mod batch;
mod clients;
mod contestants;
mod effort;
mod group_commit;
mod memory;
mod report;
mod server_time;
mod server_version;
mod shapes;
mod sizing;
mod sorted_set;
mod textbook;

use anyhow::{Context, Result};
use limiter_testkit::server::Server;

pub use batch::Batched;
pub use clients::{Load, Served};
pub use effort::Effort;
pub use group_commit::{Grouped, Side};
pub use memory::Bytes;
pub use report::Results;
pub use server_time::{Row, Spread};
pub use sizing::Sizing;
pub use textbook::{Collisions, Lengths, Textbook};

/// Starts a server and measures everything whose name contains `only`.
///
/// # Errors
/// If the server cannot be started, or does not answer as expected.
pub fn measure(effort: Effort, only: Option<&str>) -> Result<Results> {
    let server = Server::start().context("cannot start a server for the Redis group")?;
    let version = server_version::describe(&server.info("server")?);
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
        if wanted(group_commit::NAME) {
            eprintln!("{}", group_commit::NAME);
            results.grouped = group_commit::measure(&server, effort).await.context(group_commit::NAME)?;
        }
        if wanted(batch::NAME) {
            eprintln!("{}", batch::NAME);
            results.batches = batch::measure(&server, effort).await.context(batch::NAME)?;
        }
        if wanted(textbook::NAME) {
            eprintln!("{}", textbook::NAME);
            results.textbook = Some(textbook::measure(&server, effort).await.context(textbook::NAME)?);
        }
        if wanted(sizing::NAME) {
            eprintln!("{}", sizing::NAME);
            results.sizing = sizing::measure(&server, effort).await.context(sizing::NAME)?;
        }
        if wanted(memory::NAME) {
            results.bytes = memory::measure(&server).await.context(memory::NAME)?;
        }
        Ok(results)
    })
}
