//! The documents that show the committed figures.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::admission;
use crate::http;
use crate::libraries::{Library, Now};
use crate::operations;
use crate::plot::{Bar, bars};
use crate::readme;
use crate::record::Record;
use crate::remote;
use crate::report::{PEERS, Results};
use crate::surface::heat_map::heat_map;
use crate::surface::{Surface, report};

/// A document: its path in the workspace, and its text.
#[derive(Debug)]
pub struct Document {
    /// The path, relative to the workspace.
    pub path: &'static str,
    /// The full text.
    pub text: String,
}

/// Returns all documents, rendered from the committed records.
///
/// # Errors
/// If a record or the README cannot be read, or a plot cannot be drawn.
pub fn all(workspace: &Path) -> Result<Vec<Document>> {
    let memory = Record::<Results>::load(workspace)?;
    let surface = Record::<Surface>::load(workspace)?;
    let redis = Record::<remote::Results>::load(workspace)?;
    let http = Record::<http::Results>::load(workspace)?;
    let readme = fs::read_to_string(workspace.join("README.md")).context("cannot read README.md")?;
    let page = "docs/operations.md";
    let operations = fs::read_to_string(workspace.join(page)).with_context(|| format!("cannot read {page}"))?;
    Ok(vec![
        Document { path: "benches/RESULTS.md", text: memory_text(&memory) + &surface_text(&surface) },
        Document { path: "docs/bench-surface.svg", text: heat_map(&surface.results)? },
        Document { path: "docs/bench-time.svg", text: time_plot(&memory.results)? },
        Document { path: "docs/bench-admitted.svg", text: admission_plot(&memory.results)? },
        Document { path: "benches/RESULTS-REDIS.md", text: redis_text(&redis) },
        Document { path: page, text: operations::with_sizing(&operations, &redis)? },
        Document { path: "docs/bench-redis.svg", text: redis_plot(&redis.results)? },
        Document { path: "benches/RESULTS-HTTP.md", text: http_text(&http) },
        Document { path: "README.md", text: readme::with_speed(&readme, &memory, &surface)? },
    ])
}

/// Writes all documents.
///
/// # Errors
/// As [`all`], and if a file cannot be written.
pub fn write_all(workspace: &Path) -> Result<()> {
    for Document { path, text } in all(workspace)? {
        fs::write(workspace.join(path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// Returns the text of `RESULTS.md`.
#[must_use]
pub fn memory_text(record: &Record<Results>) -> String {
    let Record { arguments, machine, versions, results } = record;
    let mut out = String::from("# The limiter beside its peers\n\n");
    let _ = write!(
        out,
        "The output of `cargo run --release -p limiter-benches -- {arguments}`. The libraries of a scenario take \
             short turns within one process, so that other load on the machine affects all of them equally. The \
             program asserts every answer. It calls each library through its public API, and each library reads its \
             real clock.\n\n\
         - machine: {machine}\n\
         - versions: {versions}\n\
         - trypema, limitador and throttlecrab count in whole seconds. A quota per millisecond is converted to the \
             same rate per second for them. throttlecrab is wrapped in a `Mutex`. Keys are `String`s of 16 bytes, \
             and are in the cache except where a scenario states otherwise.\n"
    );
    out + &results.markdown()
}

/// Returns the section of `RESULTS.md` on the surface.
#[must_use]
pub fn surface_text(record: &Record<Surface>) -> String {
    let Record { arguments, machine, versions, results } = record;
    let mut out = report::markdown(results);
    let _ = write!(
        out,
        "\nMeasured by `cargo run --release -p limiter-benches -- {arguments}` on: {machine}. Versions: {versions}.\n"
    );
    out
}

/// Returns the text of `RESULTS-REDIS.md`.
#[must_use]
pub fn redis_text(record: &Record<remote::Results>) -> String {
    let Record { arguments, machine, versions, results } = record;
    let mut out = String::from("# The limiter in Redis beside its peers\n\n");
    let _ = write!(
        out,
        "The output of `cargo run --release -p limiter-benches -- {arguments}`. The contestants take short turns on \
             one server, so that other load on the machine affects all of them equally. The program asserts every \
             answer. It starts the server; `LIMITER_REDIS_SERVER=/path/to/redis-server` selects the binary.\n\n\
         - machine: {machine}\n\
         - versions: {}, {versions}\n",
        results.version
    );
    out + &results.markdown()
}

/// Returns the text of `RESULTS-HTTP.md`.
#[must_use]
pub fn http_text(record: &Record<http::Results>) -> String {
    let Record { arguments, machine, versions, results } = record;
    let mut out = String::from("# The limiter in axum beside its peer\n\n");
    let _ = write!(
        out,
        "The output of `cargo run --release -p limiter-benches -- {arguments}`. All take short turns within one process, so that \
         other load on the machine affects all alike. Every status is asserted.\n\n\
         - machine: {machine}\n\
         - versions: {versions}\n"
    );
    out + &results.markdown()
}

fn time_plot(results: &Results) -> Result<String> {
    let libraries: Vec<&str> = [Now::NAME].into_iter().chain(PEERS).collect();
    let shown = ["hot/allowed", "hot/denied", "keys_1024/allowed", "keys_1M/uniform", "hot/two_threads"];
    let rows = shown.iter().filter_map(|name| results.rows.iter().find(|row| row.name == *name));
    let groups = rows.map(|row| {
        let bar = |library: &&str| {
            let value = row.of(library)?;
            let shown = format!("{value:.0} ns");
            Some(Bar { label: (*library).to_owned(), value, shown, ours: *library == Now::NAME })
        };
        (row.about.clone(), libraries.iter().filter_map(bar).collect())
    });
    let title = "Nanoseconds per decision (shorter is faster; broken bars are not to scale)";
    bars(title, &groups.collect::<Vec<_>>())
}

fn admission_plot(results: &Results) -> Result<String> {
    let group = |name: &str, of: fn(&admission::Admitted) -> usize| {
        let bar = |admitted: &admission::Admitted| Bar {
            label: admitted.library.clone(),
            value: of(admitted) as f64,
            shown: of(admitted).to_string(),
            ours: admitted.library == Now::NAME,
        };
        (name.to_owned(), results.admitted.iter().map(bar).collect())
    };
    let groups = [
        group("400 requests around the end of the first second", |admitted| admitted.boundary),
        group("five times the limit for three seconds", |admitted| admitted.steady),
    ];
    bars("Admitted in the worst second (the limit is 100)", &groups)
}

fn redis_plot(results: &remote::Results) -> Result<String> {
    bars("Decisions in Redis (shorter is better)", &results.groups())
}
