//! The sections of decisions in memory, and of requests through axum.

use super::Sections;
use super::table::{beside, column, goals, nanos, nanos_of, number, origin, row, table};
use crate::declared::{HTTP, MEMORY};
use crate::local::{CACHED, FLOOD, FLOODED, FLOOR, FORMS, FULL, PEERS, PLAIN, Scenario, http};
use crate::record::Record;

const LIMITER: &str = "limiter";
const GOVERNOR: &str = "governor";

pub(crate) fn sections(records: &[Record]) -> Sections {
    let scenarios = |wanted: fn(&Scenario) -> bool| {
        let wanted = MEMORY.scenarios.iter().filter(move |scenario| wanted(scenario));
        wanted.map(|scenario| row(&scenario.name, &scenario.about))
    };
    let peers = PEERS.map(|peer| peer.name);
    let libraries = || peers.map(|peer| (peer.to_owned(), peer.to_owned()));
    let forms = FORMS.map(|form| form.name);
    let variants = [&[LIMITER], &forms[..], &[CACHED.name, PLAIN, FLOOR.name]].concat();
    let variants: Vec<_> = variants.into_iter().map(nanos_of).collect();
    let of = |title, scenario, measure, unit, decimals| {
        number(title, decimals, move |record, who| Some(record.get(scenario, who, measure)? / unit))
    };
    let admissions = [
        of("around a boundary", "admitted", "boundary", 1.0, 0),
        of("steady load", "admitted", "steady", 1.0, 0),
        of("total", "admitted", "total", 1.0, 0),
        column("ns, hot key allowed", |record, library| record.nanos("hot/allowed", library).map(nanos)),
    ];
    let bytes = [
        of("1 entry", "bytes", "1", 1.0, 0),
        of("10 entries", "bytes", "10", 1.0, 0),
        of("100 entries", "bytes", "100", 1.0, 0),
        number("each further entry", 1, |record, library| Some(record.get("bytes", library, "further")?.max(0.0))),
    ];
    let floods = [
        of("mean, ns", FLOOD, "mean", 1.0, 0),
        of("p99.9, µs", FLOOD, "p99.9", 1e3, 1),
        of("p99.99, µs", FLOOD, "p99.99", 1e3, 1),
        of("longest, ms", FLOOD, "longest", 1e6, 1),
        of("MB at the end", FLOOD, "bytes", 1e6, 1),
        column("the used-up key", |record, who| {
            let denied = record.get(FLOOD, who, "victim denied")?;
            Some(if denied > 0.0 { "stays denied" } else { "**was admitted**" }.to_owned())
        }),
    ];
    let compared = |scenario: &Scenario| scenario.has("peers") || scenario.has(GOVERNOR);
    Sections::from([
        ("memory-origin", origin(records)),
        ("times", table(records, "scenario", &beside(&peers, "ns", nanos), scenarios(compared))),
        ("variants", table(records, "scenario", &variants, scenarios(|_| true))),
        ("admissions", table(records, "library", &admissions, libraries())),
        ("bytes", table(records, "library", &bytes, libraries())),
        ("floods", table(records, "contestant", &floods, FLOODED.map(|who| (who.to_owned(), who.to_owned())))),
        ("memory-goals", goals(records, "ratio", &MEMORY.goals)),
        ("speed-others", others(records)),
    ])
}

/// The table of the README: what the surface does not cover.
fn others(records: &[Record]) -> String {
    let shown = ["hot/allowed", "hot/two_threads", "keys_1M/uniform", "keys_1M/fresh"];
    let scenarios = MEMORY.scenarios.iter().filter(|scenario| shown.contains(&scenario.name.as_str()));
    let times =
        |peer| column(peer, move |record, name| Some(format!("{:.1}x", 1.0 / record.ratio(name, LIMITER, peer)?)));
    let ours = column(LIMITER, |record, name| Some(format!("**{:.0} ns**", record.nanos(name, LIMITER)?)));
    let peers = [GOVERNOR, "trypema 100 ms", "limitador", "throttlecrab"].map(times);
    let columns: Vec<_> = [ours].into_iter().chain(peers).collect();
    table(records, "workload", &columns, scenarios.map(|scenario| (scenario.about.clone(), scenario.name.clone())))
}

/// Returns the table of the README: the bytes of full logs in both stores.
pub(crate) fn costs(memory: &[Record], redis: &[Record]) -> String {
    let size =
        |bytes: f64| if bytes < 1e6 { format!("{:.1} KB", bytes / 1e3) } else { format!("{:.1} MB", bytes / 1e6) };
    let bytes = |record: &Record, name: &str| record.get(name, LIMITER, "bytes").map(size);
    let columns = [
        number("entries", 0, |record, name| record.get(name, LIMITER, "entries")),
        column("in process", bytes),
        column("in Redis", |record, name| bytes(redis.iter().find(|other| other.family() == record.family())?, name)),
    ];
    table(memory, "limit", &columns, FULL.map(|limit| (format!("`{limit}`"), format!("full/{limit}"))))
}

/// Returns the sections of requests through axum.
pub(crate) fn http_sections(records: &[Record]) -> Sections {
    let overhead = |title, who| column(title, move |record, name| record.get(name, who, "overhead").map(nanos));
    let columns = [
        nanos_of(http::BARE),
        nanos_of(http::OURS),
        nanos_of(http::GOVERNOR),
        overhead("overhead, limiter", http::OURS),
        overhead("overhead, governor", http::GOVERNOR),
    ];
    let scenarios = HTTP.scenarios.iter().map(|scenario| row(&scenario.name, &scenario.about));
    Sections::from([
        ("http-origin", origin(records)),
        ("http", table(records, "scenario", &columns, scenarios)),
        ("http-goals", goals(records, "overhead to tower_governor's", &HTTP.goals)),
    ])
}
