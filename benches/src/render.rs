//! The documents that show figures. A page is written by hand, except for the sections between two comments, which are
//! rendered from the records of all processor families.

pub(crate) mod memory;
mod plots;
pub(crate) mod redis;
pub(crate) mod service;
pub(crate) mod surface;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::record::{GROUPS, MEMORY, REDIS, Record, SURFACE};

/// The pages with rendered sections.
const PAGES: [&str; 6] = [
    "README.md",
    "docs/operations.md",
    "benches/RESULTS.md",
    "benches/RESULTS-REDIS.md",
    "benches/RESULTS-HTTP.md",
    "benches/RESULTS-SERVICE.md",
];

/// Sections by name.
pub type Sections = BTreeMap<&'static str, String>;

/// Returns the paths and texts of all documents, rendered from the committed records.
///
/// # Errors
/// If a record or a page cannot be read, no page shows a section, or a plot cannot be drawn.
pub fn all(workspace: &Path) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    let mut unused = Sections::new();
    for group in GROUPS {
        unused.extend((group.sections)(&Record::load_all(group, workspace)?));
    }
    let memory = Record::load_all(&MEMORY, workspace)?;
    unused.insert("costs", memory::costs(&memory, &Record::load_all(&REDIS, workspace)?));
    let rendered = unused.clone();
    for path in PAGES {
        let mut page = fs::read_to_string(workspace.join(path)).with_context(|| format!("cannot read {path}"))?;
        for (name, text) in &rendered {
            if let Some(replaced) = with_section(&page, name, text) {
                page = replaced;
                unused.remove(name);
            }
        }
        all.push((path.to_owned(), page));
    }
    ensure!(unused.is_empty(), "no page has the sections {:?}", unused.into_keys());
    all.push(("docs/bench-admitted.svg".to_owned(), plots::admitted(&memory)?));
    for record in Record::load_all(&SURFACE, workspace)? {
        all.push((surface::plot(&record), plots::heat_map(&record)?));
    }
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
