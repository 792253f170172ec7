//! The sections of requests to the server.

use super::Sections;
use super::table::{figure, goals, latency, origin, ratio, row, table};
use crate::declared::SERVICE;
use crate::record::Record;
use crate::service::{MEMORY, OURS, PEER};

pub(crate) fn sections(records: &[Record]) -> Sections {
    let columns = [
        figure("limiter-server", OURS, "processor", 1),
        figure("always OK", PEER, "processor", 1),
        ratio("ratio", OURS, "processor", PEER),
        latency("latency", OURS),
        latency("latency, always OK", PEER),
    ];
    let scenarios = SERVICE.scenarios.iter().map(|scenario| row(&scenario.name, &scenario.about));
    let keys = [figure("MiB", OURS, "MiB", 0)];
    let memory = [("10,000,000 keys, at most 1,000,000 held".to_owned(), MEMORY.to_owned())];
    Sections::from([
        ("service-origin", origin(records)),
        ("service", table(records, "scenario", &columns, scenarios)),
        ("service-memory", table(records, "requests of", &keys, memory)),
        (
            "service-goals",
            goals(records, "processor time relative to always OK, unless another unit is named", &SERVICE.goals),
        ),
    ])
}
