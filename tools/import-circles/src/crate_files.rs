//! The files of a crate and their imports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::paths::{ModulePath, imported_paths};

/// The files below the `src` folder of one crate.
pub(crate) struct CrateFiles {
    files: Vec<File>,
    /// The file of each module, except inline modules.
    modules: BTreeMap<ModulePath, usize>,
}

struct File {
    name: PathBuf,
    imports: Vec<ModulePath>,
}

impl CrateFiles {
    /// Reads all Rust files below a folder.
    pub(crate) fn read(src: &Path) -> anyhow::Result<Self> {
        let mut names = Vec::new();
        collect(src, &mut names)?;
        names.sort();
        let (mut files, mut modules) = (Vec::new(), BTreeMap::new());
        for path in names {
            let name = path.strip_prefix(src)?.to_owned();
            let module = module_of(&name);
            let text = std::fs::read_to_string(&path).with_context(|| name.display().to_string())?;
            let syntax = syn::parse_file(&text).with_context(|| name.display().to_string())?;
            files.push(File { imports: imported_paths(&module, &syntax), name });
            modules.insert(module, files.len() - 1);
        }
        if files.is_empty() {
            bail!("the folder has no .rs files");
        }
        Ok(Self { files, modules })
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the path of a file, relative to the folder.
    pub(crate) fn name(&self, file: usize) -> String {
        self.files[file].name.display().to_string()
    }

    /// Returns pairs of files. The first imports the second.
    pub(crate) fn imports(&self) -> Vec<(usize, usize)> {
        let pairs = self.files.iter().enumerate().flat_map(|(i, file)| {
            file.imports.iter().filter_map(move |path| self.file_of(path)).map(move |imported| (i, imported))
        });
        pairs.filter(|(file, imported)| file != imported).collect()
    }

    /// Returns the file that a path leads to: the file of its longest prefix that is a module with a file.
    fn file_of(&self, path: &ModulePath) -> Option<usize> {
        (0..=path.len()).rev().find_map(|length| self.modules.get(&path[..length]).copied())
    }
}

fn collect(directory: &Path, names: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.push(path);
        }
    }
    Ok(())
}

fn module_of(file: &Path) -> ModulePath {
    let parts = file.with_extension("");
    let mut module: ModulePath = parts.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        module.pop();
    }
    module
}
