//! Collects the paths within the crate that a file names.

use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, Path, UseTree};

/// A path from the root of the crate: module names, possibly followed by an item name.
pub(crate) type ModulePath = Vec<String>;

/// Returns the paths that the file of a module names outside tests.
pub(crate) fn imported_paths(module: &ModulePath, file: &File) -> Vec<ModulePath> {
    let mut names = Names { module: module.clone(), children: Vec::new(), paths: Vec::new() };
    names.visit_items(&file.items);
    names.paths
}

struct Names {
    /// The current module.
    module: ModulePath,
    /// The modules that it declares. A path may start with one of them.
    children: Vec<String>,
    paths: Vec<ModulePath>,
}

impl Names {
    fn visit_items(&mut self, items: &[Item]) {
        let declared = items.iter().filter_map(|item| match item {
            Item::Mod(module) => Some(module.ident.to_string()),
            _ => None,
        });
        let outer = std::mem::replace(&mut self.children, declared.collect());
        items.iter().for_each(|item| self.visit_item(item));
        self.children = outer;
    }

    /// Adds a path if it lies within this crate.
    fn add(&mut self, segments: &[String]) {
        let Some((first, rest)) = segments.split_first() else { return };
        let (mut path, mut rest) = match first.as_str() {
            "crate" => (Vec::new(), rest),
            "self" => (self.module.clone(), rest),
            "super" => (self.module.clone(), segments),
            first if self.children.iter().any(|child| child == first) => (self.module.clone(), segments),
            _ => return,
        };
        while let Some((_, tail)) = rest.split_first().filter(|(first, _)| *first == "super") {
            path.pop();
            rest = tail;
        }
        path.extend(rest.iter().filter(|segment| *segment != "self").cloned());
        self.paths.push(path);
    }

    fn add_tree(&mut self, start: &mut Vec<String>, tree: &UseTree) {
        let depth = start.len();
        match tree {
            UseTree::Path(path) => {
                start.push(path.ident.to_string());
                self.add_tree(start, &path.tree);
            }
            UseTree::Name(name) => {
                start.push(name.ident.to_string());
                self.add(start);
            }
            UseTree::Rename(rename) => {
                start.push(rename.ident.to_string());
                self.add(start);
            }
            UseTree::Glob(_) => self.add(start),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.add_tree(start, item)),
        }
        start.truncate(depth);
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        let Some((_, items)) = module.content.as_ref().filter(|_| !is_test(&module.attrs)) else { return };
        self.module.push(module.ident.to_string());
        self.visit_items(items);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            self.add_tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A single name is an item of this module or an imported one.
        if segments.len() > 1 {
            self.add(&segments);
        }
        visit::visit_path(self, path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let argument = attribute.path().is_ident("cfg").then(|| attribute.parse_args::<syn::Path>().ok()).flatten();
        argument.is_some_and(|argument| argument.is_ident("test"))
    })
}
