//! The configuration: files in the format of Envoy's rate limit service, read and validated.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use limiter_core::Policy;

mod reader;
mod tree;

use reader::Reader;

/// A validated configuration.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The domains, in the order of the files.
    pub domains: Vec<Domain>,
    /// A hash of the names and contents of the files.
    pub fingerprint: u64,
}

/// A domain and its descriptors: one file.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The name that requests give.
    pub name: String,
    /// The topmost descriptors.
    pub nodes: Vec<Node>,
    /// Where the name stands.
    pub place: Place,
}

/// One descriptor of a file.
#[derive(Clone, Debug)]
pub struct Node {
    /// The key that an entry of a request must have.
    pub key: String,
    /// The values that the entry may have.
    pub value: Value,
    /// The limit. A node with neither a limit nor children exempts what it matches.
    pub limit: Option<RateLimit>,
    /// Counts and reports, but never denies.
    pub shadow: bool,
    /// Denies a request only together with all other rules of this kind.
    pub quota: bool,
    /// Labels metrics with all keys and values of the request.
    pub detailed_metric: bool,
    /// Labels metrics with the value of this entry.
    pub value_to_metric: bool,
    /// Limits all values that match a wildcard together.
    pub share_threshold: bool,
    /// The descriptors of the next entry.
    pub children: Vec<Node>,
    /// Where the descriptor begins.
    pub place: Place,
}

/// The values that a descriptor matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Any value.
    Any,
    /// This value.
    Exact(String),
    /// A value that matches this pattern, in which each `*` stands for any text.
    Wildcard(String),
}

/// The limit of a rule, and its names.
#[derive(Clone, Debug)]
pub struct RateLimit {
    /// What is allowed.
    pub quota: Quota,
    /// The name that answers give, and that other rules replace.
    pub name: Option<String>,
    /// The names of the rules that this rule replaces in a request that matches both.
    pub replaces: Vec<String>,
}

/// What a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quota {
    /// What fits this policy.
    Policy(Policy),
    /// Nothing: `requests_per_unit: 0`.
    Nothing,
    /// Everything: `unlimited: true`.
    Unlimited,
}

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

impl Config {
    /// Reads a file, or all files of a folder whose names end in `.yaml` or `.yml`, in the order of their names.
    ///
    /// # Errors
    /// All errors of all files.
    pub fn read(path: &Path) -> Result<Self, Errors> {
        let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let files = files(path).map_err(|error| Errors(vec![failed(path, error)]))?;
        let read = files.into_iter().map(|file| match fs::read(&file) {
            Ok(bytes) => Ok((file.display().to_string(), bytes)),
            Err(error) => Err(failed(&file, error)),
        });
        Self::collect(read)
    }

    /// Reads one file from memory. `file` names it in errors.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, Errors> {
        Self::collect([Ok((file.to_owned(), text.to_vec()))])
    }

    fn collect(files: impl IntoIterator<Item = Result<(String, Vec<u8>), String>>) -> Result<Self, Errors> {
        let (mut domains, mut errors, mut hasher) = (Vec::<Domain>::new(), Vec::new(), DefaultHasher::new());
        let mut places: HashMap<String, Place> = HashMap::new();
        for file in files {
            file.hash(&mut hasher);
            let domain = file.map_err(|error| vec![error]).and_then(|(file, text)| Reader::read(&file, &text));
            match domain {
                Ok(domain) => {
                    if let Some(first) = places.insert(domain.name.clone(), domain.place.clone()) {
                        let Domain { name, place, .. } = &domain;
                        errors.push(format!("{place}: the domain \"{name}\" is already at {first}"));
                    }
                    domains.push(domain);
                }
                Err(more) => errors.extend(more),
            }
        }
        if errors.is_empty() { Ok(Self { domains, fingerprint: hasher.finish() }) } else { Err(Errors(errors)) }
    }
}

/// Lists the files of a folder. Follows symbolic links, because Kubernetes mounts files as links.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_yaml && !is_hidden && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(io::Error::other("the folder has no file *.yaml or *.yml"));
    }
    Ok(files)
}
