//! Decisions in memory.

mod admission;
pub(crate) mod bytes;
mod filled;
pub(crate) mod flood;
pub(crate) mod libraries;
mod limits;
mod ours;
mod peers;
pub(crate) mod requests;
pub(crate) mod surface;

use std::time::Duration;

use anyhow::Result;

pub use self::filled::Filled;
pub use self::libraries::contestants;
use crate::declared::MEMORY;
use crate::declared::memory::{Order, Scenario};
use crate::record::Figures;
use crate::turns::{self, Contestant, Run};

/// Measures all scenarios.
pub(crate) fn measure(run: &mut Run<'_>) -> Result<()> {
    for scenario in &MEMORY.scenarios {
        run.scenario(&scenario.name, || compare(scenario))?;
    }
    run.scenario("admitted", || Ok(admission::measure()))?;
    run.scenario("bytes", || Ok(bytes::measure()))?;
    for limit in bytes::FULL {
        run.scenario(&format!("full/{limit}"), || Ok(bytes::full_log(&limit.parse()?)))?;
    }
    run.scenario(flood::FLOOD, || Ok(flood::measure()))
}

/// Measures the contestants of a scenario in turns. Returns nanoseconds per operation.
fn compare(scenario: &Scenario) -> Result<Figures> {
    let fresh = scenario.workload.order == Order::Fresh;
    let rounds = if fresh { 5 } else { 31 };
    let contestants = contestants(scenario).into_iter().map(|(name, library, requests)| {
        let mut filled = Filled::new(library, &requests);
        let run = move |count| filled.run(count);
        if fresh {
            Contestant::counted(name, requests.workload.keys as u64, run)
        } else {
            Contestant::timed(name, Duration::from_millis(10), run)
        }
    });
    turns::measure(&mut contestants.collect::<Vec<_>>(), |round| round >= rounds)
}
