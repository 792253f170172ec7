//! The figures of one run as JSON: `benches/results/<CPU family>/<group>.json`. All documents are rendered from these.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The figures of a scenario, by contestant and then by measure.
pub type Figures = BTreeMap<String, BTreeMap<String, f64>>;

/// Adds a figure.
pub(crate) fn put(figures: &mut Figures, who: &str, measure: &str, figure: f64) {
    figures
        .entry(who.to_owned())
        .or_default()
        .insert(measure.to_owned(), figure);
}

/// The figures of a run, by scenario.
pub type Results = BTreeMap<String, Figures>;

/// The figures of a run, and their origin. A scenario whose workload changes needs a new name.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Record {
    /// The CPU, its hardware threads and the operating system.
    pub machine: String,
    /// The versions of the measured crates, and of the server.
    pub versions: String,
    /// The figures.
    pub results: Results,
}

impl Record {
    /// Returns the record of a run on this machine, with the versions of a server, and of crates in the text of `Cargo.lock`.
    pub(crate) fn new(
        lock: &str,
        crates: &[&str],
        server: Option<String>,
        results: Results,
    ) -> Self {
        let versions = crates.iter().filter_map(|name| version(lock, name));
        let versions: Vec<String> = server.into_iter().chain(versions).collect();
        Self {
            machine: machine(),
            versions: versions.join(", "),
            results,
        }
    }

    /// Returns one figure.
    #[must_use]
    pub fn get(&self, scenario: &str, who: &str, measure: &str) -> Option<f64> {
        self.results.get(scenario)?.get(who)?.get(measure).copied()
    }

    /// Returns the maker of the CPU: the first word of its name.
    #[must_use]
    pub fn family(&self) -> &str {
        self.machine
            .split(|c: char| !c.is_alphanumeric())
            .next()
            .unwrap_or_default()
    }

    /// Reads the records of a group, one for each CPU family, in alphabetical order.
    pub(crate) fn load_all(group: &str, workspace: &Path) -> Result<Vec<Self>> {
        let mut records = Vec::new();
        for family in fs::read_dir(workspace.join(RESULTS))
            .with_context(|| format!("cannot list {RESULTS}"))?
        {
            let path = family?.path().join(group).with_extension("json");
            if path.exists() {
                let text =
                    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let record = serde_json::from_slice(&text);
                records.push(
                    record
                        .with_context(|| format!("{} is not a record of a run", path.display()))?,
                );
            }
        }
        records.sort_by_key(|record: &Self| record.family().to_owned());
        Ok(records)
    }

    /// Reads the records of several groups as one for each CPU family. A scenario's name begins with its group: `redis/bytes/10`.
    pub(crate) fn load_families(groups: &[&str], workspace: &Path) -> Result<Vec<Self>> {
        let mut families = BTreeMap::<String, Self>::new();
        for group in groups {
            for record in Self::load_all(group, workspace)? {
                let family = families.entry(record.family().to_owned()).or_default();
                let named = |(name, figures)| (format!("{group}/{name}"), figures);
                family.results.extend(record.results.into_iter().map(named));
                family.machine = record.machine;
                for version in record.versions.split(", ") {
                    if !family.versions.split(", ").any(|known| known == version) {
                        let comma = if family.versions.is_empty() { "" } else { ", " };
                        family.versions += &format!("{comma}{version}");
                    }
                }
            }
        }
        Ok(families.into_values().collect())
    }

    /// Writes the record to the file of its group and CPU family.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, group: &str, workspace: &Path) -> Result<()> {
        let directory = workspace.join(RESULTS).join(self.family().to_lowercase());
        let path = directory.join(group).with_extension("json");
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::create_dir_all(&directory)
            .and_then(|()| fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

const RESULTS: &str = "benches/results";

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| {
        line.strip_prefix("model name")?
            .split_once(": ")
            .map(|(_, name)| name)
    });
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{}, {threads} hardware threads, {}",
        model.unwrap_or("unknown"),
        std::env::consts::OS
    )
}

/// Returns a crate's name and locked version.
fn version(lock: &str, name: &str) -> Option<String> {
    let (_, package) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    let (version, _) = package.split_once('"')?;
    Some(format!("{name} {version}"))
}
