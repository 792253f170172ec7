//! The documents that show figures. A page is written by hand, except for the sections between two comments, which are
//! rendered from the records of all CPU families.

mod memory;
mod postgres;
mod readme;
mod redis;
mod service;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::group::Group;
use crate::record::Record;

/// The pages with rendered sections.
const PAGES: [&str; 9] = [
    "README.md",
    "docs/boundary.svg",
    "docs/resolutions.md",
    "docs/operations.md",
    "benches/RESULTS.md",
    "benches/RESULTS-REDIS.md",
    "benches/RESULTS-POSTGRES.md",
    "benches/RESULTS-HTTP.md",
    "benches/RESULTS-SERVICE.md",
];

/// Follows the name of a section at its beginning.
const BEGIN: &str = ": rendered by limiter-benches -->\n";

/// Sections by name.
pub type Sections = BTreeMap<&'static str, String>;

/// Returns the sections that show the records of a group.
#[must_use]
pub fn sections(group: Group, records: &[Record]) -> Sections {
    match group {
        Group::Memory => memory::sections(records),
        Group::Surface => memory::surface(records),
        Group::Redis => redis::sections(records),
        Group::Lease => redis::leases(records),
        Group::Postgres => postgres::sections(records),
        Group::Http => service::http_sections(records),
        Group::Service => service::sections(records),
    }
}

/// Returns the paths and texts of all pages, rendered from the committed records.
///
/// # Errors
/// If a record or a page cannot be read, or a page's sections differ from the rendered ones.
pub fn all(workspace: &Path) -> Result<Vec<(&'static str, String)>> {
    let load = |group: Group| Record::load_all(&group.name(), workspace);
    let [memory, surface, redis, lease, postgres] = [
        load(Group::Memory)?,
        load(Group::Surface)?,
        load(Group::Redis)?,
        load(Group::Lease)?,
        load(Group::Postgres)?,
    ];
    let mut rendered = Sections::from([
        ("boundary", readme::boundary(&memory)),
        ("costs", memory::costs(&memory, &redis)),
        ("stores", postgres::stores([&memory, &redis, &postgres])),
        ("speed", readme::speed([&memory, &surface, &redis, &lease])),
    ]);
    for &group in Group::value_variants() {
        rendered.extend(sections(group, &load(group)?));
    }
    let page = |path| {
        let text = fs::read_to_string(workspace.join(path))
            .with_context(|| format!("cannot read {path}"))?;
        Ok((path, fill(&text, &rendered).with_context(|| path)?))
    };
    let pages: Vec<_> = PAGES.into_iter().map(page).collect::<Result<_>>()?;
    let shown: usize = pages
        .iter()
        .map(|(_, text)| text.matches(BEGIN).count())
        .sum();
    ensure!(
        shown == rendered.len(),
        "the pages have {shown} sections, and {} are rendered",
        rendered.len()
    );
    Ok(pages)
}

/// Returns a page with its sections replaced.
fn fill(page: &str, rendered: &Sections) -> Result<String> {
    let (mut filled, mut rest) = (String::new(), page);
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

/// Writes all documents.
///
/// # Errors
/// As [`all`], and if a file cannot be written.
pub fn write_all(workspace: &Path) -> Result<()> {
    for (path, text) in all(workspace)? {
        fs::write(workspace.join(path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}
