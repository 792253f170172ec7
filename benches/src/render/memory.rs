//! The sections of decisions in memory, and of requests through axum.

use super::Sections;
use super::table::{Goal, beside, column, goals, nanos, nanos_of, number, origin, table};
use crate::local::{BOUNDED, CACHED, FLOOD, FLOODED, FLOOR, FORMS, LARGER, PEERS, PLAIN, SCENARIOS, http};
use crate::record::Record;

const LIMITER: &str = "limiter";
const GOVERNOR: &str = "governor";

pub(super) fn sections(records: &[Record]) -> Sections {
    let label = |name: &str, about: &str| (format!("`{name}`: {about}"), name.to_owned());
    let scenarios = || SCENARIOS.iter().map(|scenario| label(scenario.name, scenario.about));
    let compared = SCENARIOS.iter().filter(|scenario| scenario.has(GOVERNOR));
    let peers: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
    let libraries = || peers.iter().map(|peer| ((*peer).to_owned(), (*peer).to_owned()));
    let forms: Vec<&str> = FORMS.iter().map(|form| form.name).collect();
    let variants = [&[LIMITER], &forms[..], &[CACHED.name, PLAIN, FLOOR]].concat();
    let admitted = |title, load, measure| number(title, 0, move |record, library| record.get(load, library, measure));
    let bytes = |title, scenario| number(title, 0, move |record, library| record.get(scenario, library, "bytes"));
    let flood = |title, measure, unit, decimals| {
        number(title, decimals, move |record, who| Some(record.get(FLOOD, who, measure)? / unit))
    };
    let victim = |record: &Record, who: &str| {
        let denied = record.get(FLOOD, who, "victim denied")?;
        Some(if denied > 0.0 { "stays denied" } else { "**was admitted**" }.to_owned())
    };
    let admissions = [
        admitted("around a boundary", "admitted/boundary", "worst"),
        admitted("steady load", "admitted/steady", "worst"),
        admitted("total", "admitted/steady", "total"),
        column("ns, hot key allowed", |record, library| record.nanos("hot/allowed", library).map(nanos)),
    ];
    let sizes = [
        bytes("1 entry", "bytes/1"),
        bytes("10 entries", "bytes/10"),
        bytes("100 entries", "bytes/100"),
        number("each further entry", 1, |record, library| Some(further(record, library)?.max(0.0))),
    ];
    let floods = [
        flood("mean, ns", "mean", 1.0, 0),
        flood("p99.9, µs", "p99.9", 1e3, 1),
        flood("p99.99, µs", "p99.99", 1e3, 1),
        flood("longest, ms", "longest", 1e6, 1),
        flood("MB at the end", "bytes", 1e6, 1),
        column("the used-up key", victim),
    ];
    let compared = compared.map(|scenario| label(scenario.name, scenario.about));
    let flooded = FLOODED.map(|who| (who.to_owned(), who.to_owned()));
    Sections::from([
        ("memory-origin", origin(records)),
        ("times", table(records, "scenario", &beside(&peers, "ns", nanos), compared)),
        ("variants", table(records, "scenario", &variants.into_iter().map(nanos_of).collect::<Vec<_>>(), scenarios())),
        ("admissions", table(records, "library", &admissions, libraries())),
        ("bytes", table(records, "library", &sizes, libraries())),
        ("floods", table(records, "contestant", &floods, flooded)),
        ("memory-goals", goals(records, "ratio", memory_goals())),
        ("speed-others", others(records)),
    ])
}

/// The table of the README: what the surface does not cover.
fn others(records: &[Record]) -> String {
    let shown = ["hot/allowed", "hot/two_threads", "keys_1M/uniform", "keys_1M/fresh"];
    let scenarios = SCENARIOS.iter().filter(|scenario| shown.contains(&scenario.name));
    let times =
        |peer| column(peer, move |record, name| Some(format!("{:.1}x", 1.0 / record.ratio(name, LIMITER, peer)?)));
    let ours = column(LIMITER, |record, name| Some(format!("**{:.0} ns**", record.nanos(name, LIMITER)?)));
    let peers = [GOVERNOR, "trypema 100 ms", "limitador", "throttlecrab"].map(times);
    let columns: Vec<_> = [ours].into_iter().chain(peers).collect();
    table(
        records,
        "workload",
        &columns,
        scenarios.map(|scenario| (scenario.about.to_owned(), scenario.name.to_owned())),
    )
}

/// Returns the bytes of each entry after the first.
fn further(record: &Record, library: &str) -> Option<f64> {
    Some((record.get("bytes/100", library, "bytes")? - record.get("bytes/1", library, "bytes")?) / 99.0)
}

fn memory_goals() -> Vec<Goal> {
    let goal = |what: &str, most, of: fn(&Record) -> Option<f64>| -> Goal { (what.to_owned(), most, Box::new(of)) };
    let ratio = |what: &str, most, scenario, who, other| -> Goal {
        (what.to_owned(), most, Box::new(move |record| record.ratio(scenario, who, other)))
    };
    let to_governor = |what, most, scenario| ratio(what, most, scenario, LIMITER, GOVERNOR);
    let to_plain = |what, most, scenario| ratio(what, most, scenario, LIMITER, PLAIN);
    vec![
        to_governor("hot key, allowed, to governor", 0.75, "hot/allowed"),
        to_governor("hot key, denied, to governor", 0.75, "hot/denied"),
        to_governor("1,024 keys, to governor", 0.7, "keys_1024/allowed"),
        to_governor("1,000,000 keys, to governor", 0.7, "keys_1M/uniform"),
        to_governor("two threads on one key, to governor", 0.7, "hot/two_threads"),
        to_governor("two threads over 1,024 keys, to governor", 0.75, "keys_1024/two_threads"),
        to_governor("fresh keys, to governor", 0.8, "keys_1M/fresh"),
        ratio("future on a known store, to `now()`", 1.1, "hot/allowed", "limiter async", LIMITER),
        goal("future on a store chosen at run time, additional ns to `now()`", 35.0, |record| {
            Some(record.nanos("hot/allowed", "limiter dyn")? - record.nanos("hot/allowed", LIMITER)?)
        }),
        goal("cached denial, ns", 1000.0, |record| record.nanos("denials/one_key", CACHED.name)),
        to_plain("limit of 1,000,000 to limit of 10, denied", 1.5, "limit_1M/denied"),
        to_plain("limit of 1,000,000 to limit of 10, sliding", 1.5, "limit_1M/sliding"),
        to_plain("three windows to one", 1.6, "windows_3/allowed"),
        to_plain("cost 1,000 to cost 1", 1.2, "cost_1000/allowed"),
        goal("bytes per key with one entry, to governor", 1.3, |record| {
            Some(record.get("bytes/1", LIMITER, "bytes")? / record.get("bytes/1", GOVERNOR, "bytes")?)
        }),
        goal("bytes per further entry, up to 100", 8.5, |record| further(record, LIMITER)),
        goal("flood, at most 100,000 keys, ns a key", 1000.0, |record| record.get(FLOOD, BOUNDED, "mean")),
        goal("flood, at most 1,000,000 keys, ns a key", 1000.0, |record| record.get(FLOOD, LARGER, "mean")),
        goal("flood, at most 100,000 keys, p99.99 in µs", 20.0, |record| {
            Some(record.get(FLOOD, BOUNDED, "p99.99")? / 1e3)
        }),
    ]
}

/// Returns the sections of requests through axum.
pub(super) fn http_sections(records: &[Record]) -> Sections {
    let overhead = |record: &Record, name: &str, who| Some(record.nanos(name, who)? - record.nanos(name, http::BARE)?);
    let ratio = move |record: &Record, name: &str| {
        Some(overhead(record, name, http::OURS)? / overhead(record, name, http::GOVERNOR)?)
    };
    let columns = [
        nanos_of(http::BARE),
        nanos_of(http::OURS),
        nanos_of(http::GOVERNOR),
        column("overhead, limiter", |record, name| overhead(record, name, http::OURS).map(nanos)),
        column("overhead, governor", |record, name| overhead(record, name, http::GOVERNOR).map(nanos)),
        number("ratio", 2, ratio),
    ];
    let scenarios = http::SCENARIOS.map(|(name, about, ..)| (format!("`{name}`: {about}"), name.to_owned()));
    let goal = |(name, ..): http::Scenario| -> Goal {
        (format!("`{name}`"), 1.0, Box::new(move |record| ratio(record, name)))
    };
    Sections::from([
        ("http-origin", origin(records)),
        ("http", table(records, "scenario", &columns, scenarios)),
        ("http-goals", goals(records, "overhead to tower_governor's", http::SCENARIOS.map(goal))),
    ])
}
