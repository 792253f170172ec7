//! Decisions in memory.

mod admission;
pub(crate) mod bytes;
mod filled;
pub(crate) mod flood;
pub(crate) mod libraries;
mod limits;
mod ours;
mod peers;
pub(crate) mod surface;
pub(crate) mod workload;

use std::time::Duration;

use anyhow::Result;

pub use self::filled::Filled;
pub use self::libraries::contestants;
pub use self::workload::{MEMORY, Scenario};
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
        run.scenario(&format!("full/{limit}"), || {
            Ok(bytes::full_log(&limit.parse()?))
        })?;
    }
    run.scenario(flood::FLOOD, || Ok(flood::measure()))
}

/// Measures the contestants of a scenario in turns. Returns nanoseconds per operation.
fn compare(scenario: &Scenario) -> Result<Figures> {
    let contestants = contestants(scenario).map(|(library, requests)| {
        let mut filled = Filled::new(library, &requests);
        Contestant::timed(library.name, Duration::from_millis(10), move |count| {
            filled.run(count)
        })
    });
    turns::measure(&mut contestants.collect::<Vec<_>>(), |round| round >= 31)
}
