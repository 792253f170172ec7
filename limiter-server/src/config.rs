//! The files of a configuration, the places in them, and what is wrong there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

/// A place in a file. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The path of the file.
    pub file: Arc<str>,
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The errors of a configuration, each as `file:line:column: text`. Files that cannot be read have no line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors(pub Vec<String>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Errors {}

/// The name and the content of a file, or why it cannot be read.
pub(crate) type File = Result<(String, Vec<u8>), String>;

/// Reads a file, or all files of a folder whose names end in `.yaml` or `.yml`, in the order of their names.
pub(crate) fn files(path: &Path) -> Vec<File> {
    let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let read = |file: PathBuf| match fs::read(&file) {
        Ok(bytes) => Ok((file.display().to_string(), bytes)),
        Err(error) => Err(failed(&file, error)),
    };
    match paths(path) {
        Ok(files) => files.into_iter().map(read).collect(),
        Err(error) => vec![Err(failed(path, error))],
    }
}

/// Lists the files of a folder. Follows symbolic links, because Kubernetes mounts files as links.
fn paths(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        // Reading a pipe would wait for its other end.
        let is_other = file.metadata().is_ok_and(|found| !found.is_file());
        if is_yaml && !is_hidden && !is_other {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(io::Error::other("the folder has no file *.yaml or *.yml"));
    }
    Ok(files)
}
