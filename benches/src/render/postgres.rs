//! The sections of decisions in Postgres, and the README's table of stores.

use std::fmt::Write;

use super::table::{LIMITER, column, figure, number, origin, row, table};
use super::{PACKAGE, Sections};
use crate::postgres::{BYTES, CELLS, PACED, WHO, name};
use crate::record::Record;

pub(crate) fn sections(records: &[Record]) -> Sections {
    let [limiter, leased, locking] = WHO;
    let columns = [
        figure(limiter, limiter, "per second"),
        figure(locking, locking, "per second"),
        column("ratio", move |record: &Record, name: &String| {
            let ours = record.get(name, limiter, "per second")?;
            Some(number(ours / record.get(name, locking, "per second")?))
        }),
        figure(leased, leased, "per second"),
        figure("p99, ms", limiter, "p99"),
        figure("FOR UPDATE, p99, ms", locking, "p99"),
    ];
    let cells = CELLS.map(|cell| {
        let connections = if cell.1 == 1 {
            "connection"
        } else {
            "connections"
        };
        let keys = if cell.0 == 1 { "key" } else { "keys" };
        let about = format!("{} {keys}, {} {connections}", cell.0, cell.1);
        row(&name(cell), &about)
    });
    let paced = [
        figure("decisions per second", leased, "per second"),
        figure("requests per second", leased, "requests"),
    ];
    let bytes = [10, 100, 1_000].map(|entries: u32| {
        let title = ["10 entries", "100 entries", "1,000 entries"];
        let title = title[entries.ilog10() as usize - 1];
        column(title, move |record: &Record, name: &String| {
            record.get(name, LIMITER, &entries.to_string()).map(number)
        })
    });
    Sections::from([
        ("postgres-origin", origin(PACKAGE, "postgres", records)),
        ("postgres", table(records, "scenario", &columns, cells)),
        (
            "postgres-paced",
            table(
                records,
                "a lease",
                &paced,
                [row(PACED, "10,000 decisions a second on one key")],
            ),
        ),
        (
            "postgres-bytes",
            table(
                records,
                "bytes per entry",
                &bytes,
                [("a log".to_owned(), BYTES.to_owned())],
            ),
        ),
    ])
}

/// Returns the README's table of stores: what each is for, and where it ends.
pub(super) fn stores([memory, redis, postgres]: [&[Record]; 3]) -> String {
    let rounded = |figure: f64| {
        let digits = 10_f64.powf(figure.log10().floor() - 1.0);
        let mut text = format!("{:.0}", (figure / digits).floor() * digits);
        for i in (1..text.len())
            .rev()
            .filter(|i| (text.len() - i) % 3 == 0)
            .collect::<Vec<_>>()
        {
            text.insert(i, ',');
        }
        text
    };
    // The least of all CPU families, and the most bytes.
    let least = |records: &[Record], get: &dyn Fn(&Record) -> Option<f64>| {
        let least = records.iter().filter_map(get).reduce(f64::min);
        least.map_or_else(|| "-".to_owned(), rounded)
    };
    let most = |records: &[Record], get: &dyn Fn(&Record) -> Option<f64>| {
        let most = records.iter().filter_map(get).reduce(f64::max);
        most.map_or_else(|| "-".to_owned(), number)
    };
    let ns = |scenario: &'static str| {
        move |record: &Record| Some(1e9 / record.get(scenario, LIMITER, "ns")?)
    };
    let script =
        |record: &Record| Some(1e6 / record.get("sizing/100/128/allowed", LIMITER, "processor")?);
    let cell = |cell| move |record: &Record| record.get(&name(cell), LIMITER, "per second");
    let mut out = "| store | for | decisions per second | bytes per entry |\n|---|---|---:|---:|\n"
        .to_owned();
    for (store, purpose, decisions, bytes) in [
        (
            "memory",
            "one process",
            least(memory, &ns("keys_1M/uniform")),
            most(memory, &|record| {
                Some(record.get("bytes", LIMITER, "100")? / 100.0)
            }),
        ),
        (
            "[Redis](limiter-redis/README.md)",
            "a fleet",
            least(redis, &script),
            most(redis, &|record| {
                Some(record.get("bytes/100", LIMITER, "bytes")? / 100.0)
            }),
        ),
        (
            "[Postgres](limiter-postgres/README.md)",
            "a fleet without Redis",
            least(postgres, &cell((10_000, 32))),
            most(postgres, &|record| record.get(BYTES, LIMITER, "100")),
        ),
    ] {
        let _ = writeln!(out, "| {store} | {purpose} | {decisions} | {bytes} |");
    }
    out
}
