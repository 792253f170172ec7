//! A file of the sequences that failed once.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;

use crate::conformance::script::{self, Script};

const HEAD: &str = "# Sequences that once failed. The suite runs them first. Keep this file under version control.\n";

/// Where failing sequences are kept.
#[derive(Clone, Debug)]
pub(crate) struct Regressions(pub(crate) PathBuf);

impl Regressions {
    /// Returns the sequences, none if there is no file.
    ///
    /// # Errors
    /// Returns what is wrong with the file.
    pub(crate) fn read(&self) -> Result<Vec<Script>, String> {
        let about = |text: String| format!("{}: {text}", self.0.display());
        match std::fs::read_to_string(&self.0) {
            Ok(text) => script::parse(&text).map_err(about),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(about(error.to_string())),
        }
    }

    /// Adds a sequence, unless the file contains it. Returns a line about it.
    pub(crate) fn keep(&self, case: &str) -> String {
        let file = self.0.display();
        match self.append(case) {
            Ok(()) => format!("\n\nkept in {file}"),
            Err(error) => format!("\n\nnot kept in {file}: {error}"),
        }
    }

    fn append(&self, case: &str) -> io::Result<()> {
        let before = std::fs::read_to_string(&self.0).unwrap_or_default();
        if before.contains(case) {
            return Ok(());
        }
        if let Some(folder) = self.0.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let head = if before.is_empty() { HEAD } else { "" };
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0)?;
        file.write_all(format!("{head}\n{case}\n").as_bytes())
    }
}
