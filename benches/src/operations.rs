//! The section of `docs/operations.md` that shows figures.

use anyhow::{Context, Result};

use crate::record::Record;
use crate::remote;

/// Returns the page with its sizing section rendered from a record. The section lies between two comments.
///
/// # Errors
/// If the page lacks one of the comments.
pub fn with_sizing(page: &str, record: &Record<remote::Results>) -> Result<String> {
    const BEGIN: &str = "<!-- sizing: written by `cargo run --release -p limiter-benches -- --render` -->\n";
    const END: &str = "<!-- end of sizing -->";
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("docs/operations.md has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("docs/operations.md has no line {END}"))?;
    let (results, machine) = (&record.results, &record.machine);
    let measured = format!("\nMeasured with {} on: {machine}.\n\n", results.version);
    Ok(format!("{before}{BEGIN}{measured}{}\n{END}{after}", results.sizing_table()))
}
