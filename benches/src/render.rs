//! The documents that show figures. A page is written by hand, except for the sections between two comments, which are
//! rendered from the records of all CPU families.

pub(crate) mod memory;
pub(crate) mod postgres;
mod readme;
pub(crate) mod redis;
pub mod sources;
pub mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::program::Program;
use crate::record::Record;

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
const BEGIN: &str = ": rendered by limiter-benches -->\n";

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

/// Returns the paths and texts of a program's pages, rendered from the committed records.
///
/// # Errors
/// If a record or a page cannot be read, or a page's sections differ from the rendered ones.
pub fn all(program: &Program) -> Result<Vec<(&'static str, String)>> {
    let workspace = Path::new(program.workspace);
    let mut rendered = (program.overviews)(workspace)?;
    for group in program.groups {
        rendered.extend((group.sections)(&Record::load_all(group.name, workspace)?));
    }
    let page = |&path| {
        let text = fs::read_to_string(workspace.join(path))
            .with_context(|| format!("cannot read {path}"))?;
        Ok((path, fill(&text, &rendered).with_context(|| path)?))
    };
    let pages: Vec<_> = program.pages.iter().map(page).collect::<Result<_>>()?;
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

/// Writes all documents.
///
/// # Errors
/// As [`all`], and if a file cannot be written.
pub fn write_all(program: &Program) -> Result<()> {
    for (path, text) in all(program)? {
        let file = Path::new(program.workspace).join(path);
        fs::write(file, text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}
