//! The figures of one run as JSON. All documents are rendered from these records.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{http, remote, report, surface};

/// The figures of one run, and their origin.
#[derive(Debug, Deserialize, Serialize)]
pub struct Record<R> {
    /// The program's arguments.
    pub arguments: String,
    /// The processor, its hardware threads and the operating system.
    pub machine: String,
    /// The locked versions of the measured crates.
    pub versions: String,
    /// The figures.
    pub results: R,
}

/// A type of figures, with its file in the workspace and the measured crates.
pub trait Kind: Serialize + DeserializeOwned {
    /// The file with the figures, relative to the workspace.
    const FILE: &str;
    /// The crates whose versions are recorded.
    const CRATES: &[&str];
}

impl Kind for report::Results {
    const FILE: &str = "benches/results/memory.json";
    const CRATES: &[&str] = &["limiter-memory", "governor", "trypema", "limitador", "throttlecrab"];
}

impl Kind for surface::Surface {
    const FILE: &str = "benches/results/surface.json";
    const CRATES: &[&str] = &["limiter-memory", "governor", "foldhash", "trypema"];
}

impl Kind for remote::Results {
    const FILE: &str = "benches/results/redis.json";
    const CRATES: &[&str] = &["limiter-redis", "redis", "trypema"];
}

impl Kind for http::Results {
    const FILE: &str = "benches/results/http.json";
    const CRATES: &[&str] = &["limiter-tower", "tower_governor", "axum"];
}

impl<R: Kind> Record<R> {
    /// Returns the record of a run that just ended on this machine.
    pub fn new(arguments: &str, results: R) -> Self {
        Self { arguments: arguments.to_owned(), machine: machine(), versions: versions(R::CRATES), results }
    }

    /// Reads the committed record.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a record.
    pub fn load(workspace: &Path) -> Result<Self> {
        let text = fs::read_to_string(workspace.join(R::FILE)).with_context(|| format!("cannot read {}", R::FILE))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a record of a run", R::FILE))
    }

    /// Writes the record to its file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, workspace: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(workspace.join(R::FILE), text).with_context(|| format!("cannot write {}", R::FILE))
    }
}

fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {threads} hardware threads, {}", model.unwrap_or("unknown"), std::env::consts::OS)
}

fn versions(names: &[&str]) -> String {
    let lock = include_str!("../../Cargo.lock");
    let version = |name: &&str| {
        let (_, package) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        package.split_once('"').map(|(version, _)| format!("{name} {version}"))
    };
    names.iter().filter_map(version).collect::<Vec<_>>().join(", ")
}
