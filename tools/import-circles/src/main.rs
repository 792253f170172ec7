//! Finds circular imports between the files of a crate.
//!
//! `import-circles DIRECTORY…` takes the `src` folders of crates. A file imports another if it names a path in it, in code or
//! in a `use`. A path through a re-export counts as an import of the re-exporting file. Module declarations, code under
//! `#[cfg(test)]` and the arguments of macros are ignored.

mod crate_files;
mod paths;

use std::path::Path;

use anyhow::{Context, ensure};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::crate_files::CrateFiles;

fn main() -> anyhow::Result<()> {
    let directories: Vec<String> = std::env::args().skip(1).collect();
    ensure!(!directories.is_empty(), "expected the src folders of one or more crates");
    let mut found = 0;
    for directory in &directories {
        let files = CrateFiles::read(Path::new(directory)).with_context(|| format!("cannot read {directory}"))?;
        let circles = circles(&files);
        println!("{directory}: {} files, {} circles", files.len(), circles.len());
        for circle in &circles {
            println!("  import each other: {}", circle.join(", "));
        }
        found += circles.len();
    }
    ensure!(found == 0, "{found} circles of imports");
    Ok(())
}

/// Returns the groups of files that import each other, directly or indirectly.
fn circles(files: &CrateFiles) -> Vec<Vec<String>> {
    let imports: DiGraphMap<usize, ()> = files.imports().into_iter().collect();
    let groups = tarjan_scc(&imports).into_iter().filter(|group| group.len() > 1);
    let named = groups.map(|group| {
        let mut names: Vec<String> = group.into_iter().map(|file| files.name(file)).collect();
        names.sort();
        names
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        circles(&CrateFiles::read(directory.path()).unwrap())
    }

    #[test]
    fn two_files_that_import_each_other_are_a_circle() {
        let circle = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "use super::a::{self};")];
        assert_eq!(circles_of(&circle), [["a.rs", "b.rs"]]);
        let chain = [("lib.rs", "mod a; mod b; pub use a::A;"), ("a.rs", "use crate::b::B;"), ("b.rs", "struct B;")];
        assert!(circles_of(&chain).is_empty());
    }

    #[test]
    fn paths_in_code_groups_and_re_exports_count() {
        let code =
            [("lib.rs", "mod a; mod b;"), ("a.rs", "fn f() -> crate::b::B { g() }"), ("b.rs", "use crate::{a::A};")];
        assert_eq!(circles_of(&code), [["a.rs", "b.rs"]]);
        let re_export = [("main.rs", "mod a; use a::A;"), ("a.rs", "use crate::B;")];
        assert_eq!(circles_of(&re_export), [["a.rs", "main.rs"]]);
        let child = [("lib.rs", "mod a;"), ("a/mod.rs", "mod b; use b::B;"), ("a/b.rs", "use crate::a::A;")];
        assert_eq!(circles_of(&child), [["a/b.rs", "a/mod.rs"]]);
        let longer = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c/mod.rs", "impl crate::a::A {}"),
        ];
        assert_eq!(circles_of(&longer), [["a.rs", "b.rs", "c/mod.rs"]]);
    }

    #[test]
    fn declarations_tests_and_inline_modules_are_no_imports() {
        let tree = [
            ("lib.rs", "mod a; mod b { use crate::a::A; mod c { use super::super::a::A; } }"),
            ("a.rs", "use std::fmt; #[cfg(test)] mod tests { use super::*; use crate::B; fn f() { crate::g() } }"),
        ];
        assert!(circles_of(&tree).is_empty());
    }

    #[test]
    fn a_file_that_is_no_rust_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("lib.rs"), "fn (").unwrap();
        let error = format!("{:#}", CrateFiles::read(directory.path()).err().unwrap());
        assert!(error.contains("lib.rs"), "{error}");
    }
}
