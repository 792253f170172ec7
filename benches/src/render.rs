//! The documents that show figures. A page is written by hand, except for the sections between two comments, which are
//! rendered from the records of all CPU families.

pub(crate) mod memory;
pub(crate) mod postgres;
mod readme;
pub(crate) mod redis;
pub mod sources;
pub mod table;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::record::Record;

/// The package that measures the library.
pub(crate) const PACKAGE: &str = env!("CARGO_PKG_NAME");

/// The pages of the library with rendered sections.
pub(crate) const PAGES: [&str; 7] = [
    "README.md",
    "docs/boundary.svg",
    "docs/resolutions.md",
    "docs/operations.md",
    "benches/RESULTS.md",
    "benches/RESULTS-REDIS.md",
    "benches/RESULTS-POSTGRES.md",
];

/// Follows the name of a section at its beginning.
pub(crate) const BEGIN: &str = ": rendered by limiter-benches -->\n";

/// Sections by name.
pub type Sections = BTreeMap<&'static str, String>;

/// Returns the sections that show several of the library's groups.
///
/// # Errors
/// If a record cannot be read.
pub(crate) fn overviews(workspace: &Path) -> Result<Sections> {
    let load = |group| Record::load_all(group, workspace);
    let [memory, surface, redis, lease, postgres] = [
        load("memory")?,
        load("surface")?,
        load("redis")?,
        load("lease")?,
        load("postgres")?,
    ];
    Ok(Sections::from([
        ("boundary", readme::boundary(&memory)),
        ("costs", memory::costs(&memory, &redis)),
        ("stores", postgres::stores([&memory, &redis, &postgres])),
        ("speed", readme::speed([&memory, &surface, &redis, &lease])),
    ]))
}

/// Returns a page with its sections replaced.
pub(crate) fn fill(page: &str, rendered: &Sections) -> Result<String> {
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let name = before.rsplit("<!-- ").next().unwrap_or_default();
        let text = rendered
            .get(name)
            .with_context(|| format!("no record fills the section {name}"))?;
        let end = format!("<!-- end of {name} -->");
        (_, rest) = after
            .split_once(&end)
            .with_context(|| format!("the section {name} does not end"))?;
        filled += &format!("{before}{BEGIN}\n{text}\n{end}");
    }
    Ok(filled + rest)
}
