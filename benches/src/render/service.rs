//! The sections of requests to the server.

use super::Sections;
use super::table::{column, goals, number, origin, row, table};
use crate::declared::SERVICE;
use crate::record::Record;
use crate::service::{MEMORY, OURS, PEER};

pub(crate) fn sections(records: &[Record]) -> Sections {
    let of = |title, who, measure: &'static str, decimals| {
        number(title, decimals, move |record, name| record.get(name, who, measure))
    };
    let latency = |title, who| {
        column(title, move |record, name| {
            Some(format!("{:.0}, {:.0}", record.get(name, who, "half")?, record.get(name, who, "p99")?))
        })
    };
    let ratio = |record: &Record, name: &str| {
        let ratio = |suffix| record.get(name, OURS, &format!("processor to {PEER}{suffix}"));
        Some(format!("{:.2} ({:.2} to {:.2})", ratio("")?, ratio(", low")?, ratio(", high")?))
    };
    let columns = [
        of("limiter-server", OURS, "processor", 1),
        of("always OK", PEER, "processor", 1),
        column("ratio", ratio),
        latency("latency", OURS),
        latency("latency, always OK", PEER),
    ];
    let scenarios = SERVICE.scenarios.iter().map(|scenario| row(&scenario.name, &scenario.about));
    let keys = [of("MiB", OURS, "MiB", 0)];
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
