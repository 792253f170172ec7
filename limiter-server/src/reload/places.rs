//! The places whose changes may change a configuration.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The longest path that Linux follows.
const MAX_PATH_BYTES: usize = 4096;

/// What to watch for one path, which may lead through symbolic links.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// The folders to watch.
    pub(super) folders: HashSet<PathBuf>,
    /// The files, folders and links that the path leads to and through.
    entries: HashSet<PathBuf>,
    /// The folders of which any entry may be a file of the configuration.
    whole: HashSet<PathBuf>,
}

impl Places {
    /// Follows an absolute path as it leads now.
    pub(super) fn of(path: &Path) -> Self {
        let (mut places, mut paths, mut seen) = (Self::default(), vec![path.to_owned()], HashSet::new());
        while let Some(path) = paths.pop() {
            // A link that leads into itself makes ever longer paths.
            if path.as_os_str().len() > MAX_PATH_BYTES || !seen.insert(path.clone()) {
                continue;
            }
            let link = path.ancestors().filter(|part| part.is_symlink()).last();
            let entry = link.unwrap_or(&path);
            places.entries.insert(entry.to_owned());
            let Some(folder) = entry.parent() else { continue };
            places.folders.insert(folder.to_owned());
            match link {
                Some(link) => paths.extend(target(link, &path)),
                None if path.is_dir() => {
                    paths.extend(links(&path));
                    places.folders.insert(path.clone());
                    places.whole.insert(path);
                }
                None => {}
            }
        }
        places
    }

    /// Whether a change of one of these paths may change the configuration.
    pub(super) fn concern(&self, paths: &[PathBuf]) -> bool {
        let is_in_whole = |path: &PathBuf| path.parent().is_some_and(|folder| self.whole.contains(folder));
        paths.iter().any(|path| self.entries.contains(path) || is_in_whole(path))
    }
}

/// Returns where a path leads if its part `link` is followed.
fn target(link: &Path, path: &Path) -> Option<PathBuf> {
    let target = link.parent()?.join(fs::read_link(link).ok()?);
    let rest = path.strip_prefix(link).ok()?;
    Some(if rest.as_os_str().is_empty() { target } else { target.join(rest) })
}

/// Returns the links in a folder.
fn links(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_symlink())
}
