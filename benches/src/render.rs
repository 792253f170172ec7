//! The documents that show figures. A page is written by hand, except for the sections between two comments, which are
//! rendered from the records of all CPU families.

mod guides;
pub(crate) mod print;
mod readme;
mod results;
pub mod sources;
mod table;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::record::Record;

/// The pages of the library with rendered sections.
pub(crate) const PAGES: [&str; 5] = [
    "README.md",
    "docs/boundary.svg",
    "docs/recipes.md",
    "docs/operations.md",
    "benches/RESULTS.md",
];

/// Follows the name of a section at its beginning.
pub(crate) const BEGIN: &str = ": rendered by limiter-benches -->\n";

/// Sections by name.
pub type Sections = BTreeMap<&'static str, String>;

/// Returns the sections of the library's pages.
///
/// # Errors
/// If a record cannot be read.
pub(crate) fn sections(workspace: &Path) -> Result<Sections> {
    let groups = crate::group::GROUPS.map(|group| group.name);
    let families = Record::load_families(&groups, workspace)?;
    let mut sections = results::sections(&families);
    sections.extend([
        ("figure", readme::figure(&families)),
        ("boundary", readme::boundary(&families)),
        ("stores", readme::stores(&families)),
        ("speed", readme::speed(&families)),
        ("costs", guides::costs(&families)),
        ("sizing", guides::sizing(&families)),
    ]);
    Ok(sections)
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
