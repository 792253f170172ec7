//! Decisions in memory.

mod admission;
mod bytes;
mod flood;
mod floor;
pub(crate) mod http;
pub(crate) mod library;
mod ours;
mod peers;
mod scenarios;
pub(crate) mod surface;
pub(crate) mod workload;

pub(crate) use self::bytes::FULL;
pub(crate) use self::flood::{FLOOD, FLOODED};
pub(crate) use self::scenarios::{CACHED, FLOOR, FORMS, PEERS, PLAIN};
pub use self::scenarios::{Scenario, Timed};
use crate::declared::MEMORY;
use crate::record::{Measured, Results};
use crate::turns::Effort;

/// Measures the scenarios whose names contain `only`.
pub(crate) fn measure(effort: &Effort, only: Option<&str>) -> Measured {
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let mut results = Results::new();
    for scenario in MEMORY.scenarios.iter().filter(|scenario| wanted(&scenario.name)) {
        eprintln!("{}: {}", scenario.name, scenario.about);
        let mut timed = scenario.timed(effort);
        results.insert(scenario.name.clone(), scenarios::in_turns(&mut timed, effort)?);
    }
    if wanted("admitted") {
        results.extend(admission::measure());
    }
    if wanted("bytes") {
        results.extend(bytes::measure());
    }
    if wanted(FLOOD) {
        results.extend(flood::measure());
    }
    Ok((results, None))
}
