//! A file of the sequences that failed once.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use crate::script::{self, Script};

const HEAD: &str = "# Sequences that once failed. The suite runs them first. Keep this file under version control.\n";

/// Returns the sequences of a file, none if there is no file.
///
/// # Errors
/// Returns what is wrong with the file.
pub(crate) fn read(file: &Path) -> Result<Vec<Script>, String> {
    let about = |text: String| format!("{}: {text}", file.display());
    match std::fs::read_to_string(file) {
        Ok(text) => script::parse(&text).map_err(about),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(about(error.to_string())),
    }
}

/// Adds a sequence, unless the file contains it. Returns a line about it.
pub(crate) fn keep(file: &Path, case: &str) -> String {
    match append(file, case) {
        Ok(()) => format!("\n\nkept in {}", file.display()),
        Err(error) => format!("\n\nnot kept in {}: {error}", file.display()),
    }
}

fn append(file: &Path, case: &str) -> io::Result<()> {
    let before = std::fs::read_to_string(file).unwrap_or_default();
    if before.contains(case) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let head = if before.is_empty() { HEAD } else { "" };
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    file.write_all(format!("{head}\n{case}\n").as_bytes())
}
