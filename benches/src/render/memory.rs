//! The sections of decisions in memory.

use super::Sections;
use super::table::{beside, column, figure, figure_of_each, goals, number, origin, row, table};
use crate::declared::MEMORY;
use crate::declared::memory::Scenario;
use crate::memory::bytes::FULL;
use crate::memory::flood::{FLOOD, FLOODED};
use crate::memory::libraries::{CACHED, FORMS, PEERS, PLAIN};
use crate::record::{Group, Record};

const LIMITER: &str = PEERS[0].name;

pub(super) fn sections(records: &[Record]) -> Sections {
    let scenarios = |wanted: fn(&Scenario) -> bool| {
        let wanted = MEMORY.scenarios.iter().filter(move |scenario| wanted(scenario));
        wanted.map(|scenario| row(&scenario.name, &scenario.about))
    };
    let peers = PEERS.map(|peer| peer.name);
    let each = |who: &[&str]| who.iter().map(|who| ((*who).to_owned(), (*who).to_owned())).collect::<Vec<_>>();
    let variants = [LIMITER, FORMS[0].name, FORMS[1].name, CACHED.name, PLAIN].map(|who| figure(who, who, "ns"));
    let admissions = [figure_of_each("admitted", "admitted", "boundary", 1.0)];
    let bytes = [("1 entry", "1"), ("10 entries", "10"), ("100 entries", "100"), ("each further entry", "further")]
        .map(|(title, measure)| figure_of_each(title, "bytes", measure, 1.0));
    let floods = [
        figure_of_each("mean, ns", FLOOD, "mean", 1.0),
        figure_of_each("p99.9, µs", FLOOD, "p99.9", 1e3),
        figure_of_each("p99.99, µs", FLOOD, "p99.99", 1e3),
        figure_of_each("longest, ms", FLOOD, "longest", 1e6),
        figure_of_each("MB at the end", FLOOD, "bytes", 1e6),
    ];
    let has_peers = |scenario: &Scenario| scenario.has("peers") || scenario.has("governor");
    let has_variants =
        |scenario: &Scenario| scenario.has("forms") || scenario.has(CACHED.name) || scenario.plain.is_some();
    Sections::from([
        ("memory-origin", origin(Group::Memory, records)),
        ("times", table(records, "scenario", &beside(&peers), scenarios(has_peers))),
        ("variants", table(records, "scenario", &variants, scenarios(has_variants))),
        ("admissions", table(records, "library", &admissions, each(&peers))),
        ("bytes", table(records, "library", &bytes, each(&peers))),
        ("floods", table(records, "contestant", &floods, each(&FLOODED))),
        ("memory-goals", goals(records, "ratio", &MEMORY.goals)),
    ])
}

/// Returns the bytes of full logs in both stores.
pub(super) fn costs(memory: &[Record], redis: &[Record]) -> String {
    let kilobytes = |record: &Record, name: &str| Some(number(record.get(name, LIMITER, "bytes")? / 1e3));
    let columns = [
        figure("entries", LIMITER, "entries"),
        column("KB in process", kilobytes),
        column("KB in Redis", |record, name| {
            kilobytes(redis.iter().find(|other| other.family() == record.family())?, name)
        }),
    ];
    table(memory, "limit", &columns, FULL.map(|limit| (format!("`{limit}`"), format!("full/{limit}"))))
}
