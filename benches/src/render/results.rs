//! The sections of the page of results: the rows that a user decides by.

use super::Sections;
use super::table::{LIMITER, column, figure, peer, table};
use crate::lease;
use crate::memory::flood::FLOODED;
use crate::memory::libraries::PEERS;
use crate::postgres;
use crate::record::Record;

/// Scenarios with their labels.
type Rows<'a> = &'a [(&'a str, &'a str)];

const TIMES: Rows<'_> = &[
    ("one key, allowed", "memory/hot/allowed"),
    ("one key, denied", "memory/hot/denied"),
    ("one key, two threads", "memory/hot/two_threads"),
    ("1,024 keys, allowed", "memory/keys_1024/allowed"),
    (
        "100,000 keys, 64 entries, allowed",
        "surface/100000 64 allowed 1",
    ),
    (
        "100,000 keys, 64 entries, denied",
        "surface/100000 64 denied 1",
    ),
    ("1,000,000 keys, allowed", "memory/keys_1M/uniform"),
    (
        "100,000 keys, 24 entries, resolution",
        "memory/resolution/100k_keys",
    ),
];
const SERVER: Rows<'_> = &[
    (
        "one key, 400 entries, allowed",
        "redis/server/hot/allowed/steady",
    ),
    ("one key, denied", "redis/server/hot/denied"),
    (
        "100,000 keys, 10 entries, allowed",
        "redis/server/keys/allowed/steady",
    ),
    ("100,000 keys, denied", "redis/server/keys/denied"),
    ("two limits, allowed", "redis/server/general/two_limits"),
    ("denied attempts count", "redis/server/general/attempts"),
    ("a policy for each call", "redis/server/general/own"),
    ("idempotency keys", "redis/server/general/ids"),
    (
        "five limiters in one call",
        "redis/server/general/five_rules",
    ),
    ("a resolution, allowed", "redis/server/resolution/hot"),
];
const BYTES: Rows<'_> = &[
    ("1", "redis/bytes/1"),
    ("10", "redis/bytes/10"),
    ("100", "redis/bytes/100"),
    ("1,000", "redis/bytes/1000"),
    ("10,000", "redis/bytes/10000"),
];
const LOGS: Rows<'_> = &[
    ("renewal, 1,000 entries", "redis/renewal/1000"),
    ("settlement, none newer", "redis/settlement/0"),
    ("settlement, 1,000 newer", "redis/settlement/1000"),
    ("settlement, 10,000 newer", "redis/settlement/10000"),
    ("longest append", "redis/worst/exact"),
];

pub(super) fn sections(families: &[Record]) -> Sections {
    let machines = families
        .iter()
        .map(|record| format!("- {}: {}.\n", record.machine, record.versions));
    let names = PEERS.map(|library| library.name);
    let libraries = || names.map(|name| (name, name));
    let of_each = |title, scenario: &'static str, measure: &'static str, unit: f64| {
        column(title, move |record, who| {
            Some(record.get(scenario, who, measure)? / unit)
        })
    };
    let mut times = vec![figure(LIMITER, LIMITER, "ns")];
    times.extend(names[1..].iter().map(|name| peer(name, "ns")));
    let [leased, plain] = lease::WHO;
    let [ours, lease, locking] = postgres::WHO;
    let tables = [
        ("times", "decision", times, TIMES.to_vec()),
        (
            "admissions",
            "library",
            vec![of_each("admitted", "memory/admitted", "boundary", 1.0)],
            libraries().to_vec(),
        ),
        (
            "bytes",
            "library",
            vec![
                of_each("1 entry", "memory/bytes", "1", 1.0),
                of_each("10", "memory/bytes", "10", 1.0),
                of_each("100", "memory/bytes", "100", 1.0),
            ],
            libraries().to_vec(),
        ),
        (
            "floods",
            "contestant",
            vec![
                of_each("mean, ns", "memory/flood", "mean", 1.0),
                of_each("p99.99, µs", "memory/flood", "p99.99", 1e3),
                of_each("longest, ms", "memory/flood", "longest", 1e6),
                of_each("MB", "memory/flood", "bytes", 1e6),
            ],
            FLOODED.map(|who| (who, who)).to_vec(),
        ),
        (
            "server-time",
            "decision",
            vec![
                figure(LIMITER, LIMITER, "script"),
                figure("GCRA", "GCRA", "script"),
                figure("ratio", LIMITER, "script to GCRA"),
            ],
            SERVER.to_vec(),
        ),
        (
            "redis-bytes",
            "entries",
            vec![
                figure(LIMITER, LIMITER, "bytes"),
                figure("GCRA", "GCRA", "bytes"),
            ],
            BYTES.to_vec(),
        ),
        (
            "redis-logs",
            "call",
            vec![figure("µs", LIMITER, "script")],
            LOGS.to_vec(),
        ),
    ];
    let mut sections = Sections::from([("machines", machines.collect())]);
    for (name, head, columns, rows) in &tables {
        sections.insert(name, table(families, head, columns, rows.iter().copied()));
    }
    let thousandth = |title, who, measure| {
        column(title, move |record: &Record, name: &str| {
            Some(record.get(name, who, measure)? * 1e3)
        })
    };
    let columns = [
        figure("decisions per second", leased, "per second"),
        figure("without", plain, "per second"),
        thousandth("calls per 1,000 decisions", leased, "calls"),
        thousandth("ns of Redis' CPU", leased, "processor"),
        thousandth("without", plain, "processor"),
        figure("median of a call, µs", leased, "half"),
        figure("without", plain, "half"),
    ];
    let rows = lease::WORKLOADS
        .iter()
        .map(|workload| (workload.about, format!("lease/{}", workload.name)));
    sections.insert("leases", table(families, "limits", &columns, rows));
    let columns = [
        figure(ours, ours, "per second"),
        figure(locking, locking, "per second"),
        figure(lease, lease, "per second"),
        figure("p99, ms", ours, "p99"),
    ];
    let cells = [(1, 8), (10_000, 8), (10_000, 32)];
    let rows = cells.map(|cell| {
        let label = format!("{} | {}", cell.0, cell.1);
        (label, format!("postgres/{}", postgres::name(cell)))
    });
    let head = "keys | connections";
    sections.insert("postgres", table(families, head, &columns, rows));
    sections
}
