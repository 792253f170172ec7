//! The documents that show figures. A page is written by hand, except for the sections between two comments, which are
//! rendered from the records of all CPU families.

mod memory;
mod readme;
mod redis;
mod service;
mod surface;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::record::{Group, Record};

/// The pages with rendered sections.
const PAGES: [&str; 7] = [
    "README.md",
    "docs/resolutions.md",
    "docs/operations.md",
    "benches/RESULTS.md",
    "benches/RESULTS-REDIS.md",
    "benches/RESULTS-HTTP.md",
    "benches/RESULTS-SERVICE.md",
];

/// Sections by name.
pub type Sections = BTreeMap<&'static str, String>;

/// Returns the sections that show the records of a group.
#[must_use]
pub fn sections(group: Group, records: &[Record]) -> Sections {
    match group {
        Group::Memory => memory::sections(records),
        Group::Surface => surface::sections(records),
        Group::Redis => redis::sections(records),
        Group::Http => service::http_sections(records),
        Group::Service => service::sections(records),
    }
}

/// Returns the paths and texts of all documents, rendered from the committed records.
///
/// # Errors
/// If a record or a page cannot be read, or no page shows a section.
pub fn all(workspace: &Path) -> Result<Vec<(String, String)>> {
    let load = |group| Record::load_all(group, workspace);
    let [memory, surface, redis] = [load(Group::Memory)?, load(Group::Surface)?, load(Group::Redis)?];
    let mut rendered = Sections::from([
        ("costs", memory::costs(&memory, &redis)),
        ("speed", readme::speed([&memory, &surface, &redis])),
    ]);
    for group in Group::ALL {
        rendered.extend(sections(group, &load(group)?));
    }
    let mut unused = rendered.clone();
    let mut all = vec![("docs/boundary.svg".to_owned(), readme::boundary(&memory))];
    for path in PAGES {
        let mut page = fs::read_to_string(workspace.join(path)).with_context(|| format!("cannot read {path}"))?;
        let mut sections = page.matches("limiter-benches -- --render` -->").count();
        for (name, text) in &rendered {
            if let Some(replaced) = with_section(&page, name, text) {
                page = replaced;
                unused.remove(name);
                sections -= 1;
            }
        }
        ensure!(sections == 0, "{path} has {sections} sections that no record fills");
        all.push((path.to_owned(), page));
    }
    ensure!(unused.is_empty(), "no page has the sections {:?}", unused.into_keys());
    Ok(all)
}

/// Writes all documents.
///
/// # Errors
/// As [`all`], and if a file cannot be written.
pub fn write_all(workspace: &Path) -> Result<()> {
    for (path, text) in all(workspace)? {
        fs::write(workspace.join(&path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// Returns a page with one section replaced, or nothing if the page lacks the comments around it.
fn with_section(page: &str, name: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- {name}: written by `cargo run --release -p limiter-benches -- --render` -->\n");
    let end = format!("<!-- end of {name} -->");
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{text}\n{end}{after}"))
}
