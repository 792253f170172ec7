//! The figures of one run as JSON: `benches/results/<processor family>/<group>.json`. All documents are rendered from these.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::render::Sections;
use crate::turns::Effort;
use crate::{local, remote, render, service};

/// The figures of a scenario, by contestant and then by measure.
pub type Figures = BTreeMap<String, BTreeMap<String, f64>>;

/// Adds a figure.
pub(crate) fn put(figures: &mut Figures, who: &str, measure: &str, figure: f64) {
    figures.entry(who.to_owned()).or_default().insert(measure.to_owned(), figure);
}

/// The figures of a run, by scenario.
pub type Results = BTreeMap<String, Figures>;

/// The figures of a run, and the server's version if there is one.
pub(crate) type Measured = Result<(Results, Option<String>)>;

/// Scenarios that are measured together, into a record for every processor family.
#[derive(Debug)]
pub struct Group {
    /// The name of its records, and of the program's argument that selects it.
    pub name: &'static str,
    /// The crates whose versions are recorded.
    crates: &'static [&'static str],
    /// Measures the scenarios whose names contain a text.
    measure: fn(&Effort, Option<&str>) -> Measured,
    /// Renders its sections of the documents.
    pub sections: fn(&[Record]) -> Sections,
}

/// Decisions in memory: time, over-admission, bytes, and a flood of keys.
pub const MEMORY: Group = Group {
    name: "memory",
    crates: &["limiter-memory", "governor", "trypema", "limitador", "throttlecrab"],
    measure: local::measure,
    sections: render::memory::sections,
};
/// Decisions in memory over the number of keys, the entries of each log, the verdict and the threads.
pub const SURFACE: Group = Group {
    name: "surface",
    crates: &["limiter-memory", "governor", "foldhash", "trypema"],
    measure: local::surface::measure,
    sections: render::surface::sections,
};
/// Decisions in Redis.
pub const REDIS: Group = Group {
    name: "redis",
    crates: &["limiter-redis", "redis"],
    measure: remote::measure,
    sections: render::redis::sections,
};
/// Requests through axum.
pub const HTTP: Group = Group {
    name: "http",
    crates: &["limiter-tower", "tower_governor", "axum"],
    measure: local::http::measure,
    sections: render::memory::http_sections,
};
/// Requests to `limiter-server` over gRPC.
pub const SERVICE: Group = Group {
    name: "service",
    crates: &["limiter-server", "tonic"],
    measure: service::measure,
    sections: render::service::sections,
};
/// All groups.
pub(crate) const GROUPS: [&Group; 5] = [&MEMORY, &SURFACE, &REDIS, &HTTP, &SERVICE];

/// The figures of a run, and their origin. A scenario whose workload changes needs a new name.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Record {
    /// The program's arguments.
    pub arguments: String,
    /// The processor, its hardware threads and the operating system.
    pub machine: String,
    /// The versions of the measured crates, and of the server.
    pub versions: String,
    /// The figures.
    pub results: Results,
}

impl Record {
    /// Measures the scenarios of a group whose names contain `only`.
    ///
    /// # Errors
    /// If an answer is not as expected, or a server cannot be started.
    pub fn measure(group: &Group, effort: &Effort, only: Option<&str>) -> Result<Self> {
        let (results, server) = (group.measure)(effort, only)?;
        let versions: Vec<String> = server.into_iter().chain(group.crates.iter().filter_map(version)).collect();
        let group = if group.name == MEMORY.name { String::new() } else { format!("--{} ", group.name) };
        let arguments = group + effort.argument;
        Ok(Self { arguments, machine: machine(), versions: versions.join(", "), results })
    }

    /// Returns one figure.
    #[must_use]
    pub fn get(&self, scenario: &str, who: &str, measure: &str) -> Option<f64> {
        self.results.get(scenario)?.get(who)?.get(measure).copied()
    }

    /// Returns the nanoseconds of a contestant.
    pub(crate) fn nanos(&self, scenario: &str, who: &str) -> Option<f64> {
        self.get(scenario, who, "ns")
    }

    /// Returns the nanoseconds of a contestant as a multiple of another's.
    pub(crate) fn ratio(&self, scenario: &str, who: &str, other: &str) -> Option<f64> {
        Some(self.nanos(scenario, who)? / self.nanos(scenario, other)?)
    }

    /// Returns the maker of the processor: the first word of its name.
    #[must_use]
    pub fn family(&self) -> &str {
        self.machine.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default()
    }

    /// Reads the records of a group, one for each processor family, in alphabetical order.
    ///
    /// # Errors
    /// If a file cannot be read, or is not a record.
    pub fn load_all(group: &Group, workspace: &Path) -> Result<Vec<Self>> {
        let mut records = Vec::new();
        for family in fs::read_dir(workspace.join(RESULTS)).with_context(|| format!("cannot list {RESULTS}"))? {
            let path = family?.path().join(group.name).with_extension("json");
            if path.exists() {
                let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let record = serde_json::from_slice(&text);
                records.push(record.with_context(|| format!("{} is not a record of a run", path.display()))?);
            }
        }
        records.sort_by_key(|record: &Self| record.family().to_owned());
        Ok(records)
    }

    /// Writes the record to the file of its group and processor family. With `add`, figures of other scenarios stay there.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn save(mut self, group: &Group, workspace: &Path, add: bool) -> Result<()> {
        let own = Self::load_all(group, workspace)?.into_iter().find(|record| record.family() == self.family());
        if let (true, Some(own)) = (add, own) {
            self.results = own.results.into_iter().chain(self.results).collect();
        }
        let directory = workspace.join(RESULTS).join(self.family().to_lowercase());
        let path = directory.join(group.name).with_extension("json");
        let text = serde_json::to_string_pretty(&self)? + "\n";
        fs::create_dir_all(&directory)
            .and_then(|()| fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

const RESULTS: &str = "benches/results";

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {threads} hardware threads, {}", model.unwrap_or("unknown"), std::env::consts::OS)
}

/// Returns a crate's name and locked version.
fn version(name: &&str) -> Option<String> {
    let (_, package) = include_str!("../../Cargo.lock").split_once(&format!("name = \"{name}\"\nversion = \""))?;
    package.split_once('"').map(|(version, _)| format!("{name} {version}"))
}
