//! The files of a configuration, positions in them, and their errors.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

/// A position in a file. Lines and columns count from 1; in a resource of a control plane, both are 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// The path of the file.
    pub file: Arc<str>,
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}:{}", self.file, self.column),
        }
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

/// A configuration's paths: the files that are read, and the folder's other files.
#[derive(Default)]
pub(crate) struct Paths {
    files: Vec<PathBuf>,
    pub(crate) ignored: Vec<PathBuf>,
}

impl Paths {
    /// Lists a file, or a folder: the files whose names end in `.yaml` or `.yml`, in the order of their names. Hidden files are
    /// neither read nor listed. Follows symbolic links, because Kubernetes mounts files as links.
    pub(crate) fn list(path: &Path) -> Result<Self, String> {
        Self::find(path).map_err(|error| failed(path, &error))
    }

    fn find(path: &Path) -> io::Result<Self> {
        let mut paths = Self::default();
        if !fs::metadata(path)?.is_dir() {
            paths.files.push(path.to_owned());
            return Ok(paths);
        }
        for entry in fs::read_dir(path)? {
            let file = entry?.path();
            let is_yaml = file
                .extension()
                .is_some_and(|extension| extension == "yaml" || extension == "yml");
            let is_hidden = file
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            // Reading a pipe would wait for its other end.
            let is_other = file.metadata().is_ok_and(|found| !found.is_file());
            match is_yaml && !is_other {
                _ if is_hidden => {}
                true => paths.files.push(file),
                false => paths.ignored.push(file),
            }
        }
        paths.files.sort();
        paths.ignored.sort();
        if paths.files.is_empty() {
            return Err(io::Error::other(
                "the folder contains no *.yaml or *.yml file",
            ));
        }
        Ok(paths)
    }

    /// Reads the files.
    pub(crate) fn read(&self) -> impl Iterator<Item = File> {
        self.files.iter().map(|file| match fs::read(file) {
            Ok(bytes) => Ok((file.display().to_string(), bytes)),
            Err(error) => Err(failed(file, &error)),
        })
    }
}

/// Returns a number that changes with each of these files and each file of these folders. Does not read the files.
pub(crate) fn stamp(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        let listed = Paths::list(path);
        listed
            .as_ref()
            .map(|paths| &paths.ignored)
            .hash(&mut hasher);
        for file in listed.iter().flat_map(|paths| &paths.files) {
            let found = fs::metadata(file).map(|found| {
                let changed = (found.ctime(), found.ctime_nsec());
                let modified = (found.mtime(), found.mtime_nsec());
                (found.dev(), found.ino(), found.size(), changed, modified)
            });
            (file, found.ok()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Returns a text on one line: control characters would forge lines of the log.
pub(crate) fn on_a_line(text: &str) -> String {
    let escaped = |char: char| match char {
        _ if char.is_control() => char.escape_default().to_string(),
        _ => char.into(),
    };
    text.chars().map(escaped).collect()
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
