//! No files of a crate import each other in a circle: what two of them need of each other is a file of its own.
//!
//! A file may name what heads its folder (`exchange/starter.rs` what `exchange.rs` defines): that is no import. A name that
//! is handed on (`pub use`) counts where it is defined. Tests and what macros hold are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::Visit;
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, UseTree, Visibility};

use crate::structure::{root, rust_files_in};

/// A module of a crate: `["exchange", "starter"]`.
type Module = Vec<String>;

/// What one file names.
#[derive(Default)]
struct Names {
    used: BTreeSet<Vec<String>>,
    /// By the name under which it is handed on.
    handed_on: BTreeMap<String, Vec<String>>,
    /// Files of which all names are handed on.
    handed_on_whole: Vec<Vec<String>>,
    defined: BTreeSet<String>,
}

impl Names {
    fn of(path: &Path) -> Names {
        let text = std::fs::read_to_string(path).expect("readable");
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut names = Names::default();
        names.visit_file(&file);
        names
    }

    fn take_in(&mut self, before: &[String], tree: &UseTree, is_handed_on: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.take_in(&with(&path.ident), &path.tree, is_handed_on),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.take_in(before, tree, is_handed_on)),
            UseTree::Name(name) => self.take_in_name(&name.ident, with(&name.ident), is_handed_on),
            UseTree::Rename(rename) => self.take_in_name(&rename.rename, with(&rename.ident), is_handed_on),
            UseTree::Glob(_) if is_handed_on => self.handed_on_whole.push(before.to_vec()),
            UseTree::Glob(_) => drop(self.used.insert([before, &["*".to_owned()]].concat())),
        }
    }

    fn take_in_name(&mut self, name: impl ToString, path: Vec<String>, is_handed_on: bool) {
        if is_handed_on {
            self.handed_on.insert(name.to_string(), path);
        } else {
            self.used.insert(path);
        }
    }
}

impl<'file> Visit<'file> for Names {
    fn visit_item(&mut self, item: &'file Item) {
        let (attributes, defined): (&[Attribute], _) = match item {
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Mod(item) => (&item.attrs, None),
            Item::Use(item) => (&item.attrs, None),
            Item::Const(item) => (&[], Some(&item.ident)),
            Item::Enum(item) => (&[], Some(&item.ident)),
            Item::Static(item) => (&[], Some(&item.ident)),
            Item::Struct(item) => (&[], Some(&item.ident)),
            Item::Trait(item) => (&[], Some(&item.ident)),
            Item::Type(item) => (&[], Some(&item.ident)),
            _ => (&[], None),
        };
        self.defined.extend(defined.map(ToString::to_string));
        let is_test = |attribute: &Attribute| match &attribute.meta {
            Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
            _ => false,
        };
        if !attributes.iter().any(is_test) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, _module: &'file ItemMod) {
        // One in a file of its own is looked at there.
    }

    fn visit_item_use(&mut self, item: &'file ItemUse) {
        self.take_in(&[], &item.tree, !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'file syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.used.insert(segments);
        }
        syn::visit::visit_path(self, path);
    }
}

/// The files of one crate.
struct Crate(BTreeMap<Module, Names>);

impl Crate {
    fn open(folder: &str) -> Crate {
        let source = root().join(folder).join("src");
        let module = |path: &Path| -> Module {
            let parts = path.strip_prefix(&source).expect("below").with_extension("");
            let mut parts: Module = parts.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            parts.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
            parts
        };
        let is_test = |path: &Path| {
            path.strip_prefix(&source)
                .expect("below")
                .iter()
                .any(|part| part.to_string_lossy().trim_end_matches(".rs").ends_with("tests"))
        };
        let files = rust_files_in(&[&format!("{folder}/src")]);
        let files = files.into_iter().filter(|path| !is_test(path) && !path.ends_with("main.rs"));
        Crate(files.map(|path| (module(&path), Names::of(&path))).collect())
    }

    /// From the crate's root, where the path leads into the crate.
    fn absolute(&self, from: &Module, path: &[String]) -> Option<Vec<String>> {
        let ups = path.iter().take_while(|part| *part == "super").count();
        if ups > 0 {
            return Some([&from[..from.len().checked_sub(ups)?], &path[ups..]].concat());
        }
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([from, &path[1..]].concat()),
            name => {
                let below = [from.as_slice(), &[name.to_owned()]].concat();
                self.0.contains_key(&below).then(|| [from, path].concat())
            }
        }
    }

    /// The file that defines what a path names; `None` where it names a file and nothing in it.
    fn definer(&self, path: &[String], depth: usize) -> Option<Module> {
        let length = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        let name = rest.first()?;
        let names = &self.0[module];
        if depth == 8 || names.defined.contains(name) {
            return Some(module.to_vec());
        }
        if let Some(next) = names.handed_on.get(name).and_then(|next| self.absolute(&module.to_vec(), next)) {
            return self.definer(&[&next, &rest[1..]].concat(), depth + 1);
        }
        let mut whole = names.handed_on_whole.iter().filter_map(|next| self.absolute(&module.to_vec(), next));
        whole.find(|next| self.defines(next, name)).or_else(|| Some(module.to_vec()))
    }

    fn defines(&self, module: &[String], name: &str) -> bool {
        self.0.get(module).is_some_and(|names| names.defined.contains(name))
    }

    fn imports(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let of_file = |(module, names): (&Module, &Names)| {
            let paths = names.used.iter().filter_map(|path| self.absolute(module, path));
            let definers = paths.filter_map(|path| self.definer(&path, 0));
            (module.clone(), definers.filter(|definer| !module.starts_with(definer)).collect())
        };
        self.0.iter().map(of_file).collect()
    }
}

/// The files that lead back to themselves, without those that only lead to a circle or come from one.
fn circles(mut imports: BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    loop {
        let imported: BTreeSet<Module> = imports.values().flatten().cloned().collect();
        let before = imports.len();
        imports.retain(|module, of| !of.is_empty() && imported.contains(module));
        let left: BTreeSet<Module> = imports.keys().cloned().collect();
        imports.values_mut().for_each(|of| of.retain(|module| left.contains(module)));
        if imports.len() == before {
            return imports;
        }
    }
}

#[test]
fn a_circle_is_found_and_what_leads_to_it_is_not_shown() {
    let module = |name: &str| vec![name.to_owned()];
    let imports =
        [("first", "second"), ("second", "third"), ("third", "first"), ("outside", "first"), ("first", "leaf")];
    let mut map: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::from([(module("leaf"), BTreeSet::new())]);
    for (from, to) in imports {
        map.entry(module(from)).or_default().insert(module(to));
    }
    let found = circles(map.clone());
    assert_eq!(found.keys().flatten().collect::<Vec<_>>(), ["first", "second", "third"]);
    map.remove(&module("second"));
    assert_eq!(circles(map), BTreeMap::new());
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for folder in ["protocol", "daemon/network", "daemon/training", "sim", "daemon", "tests"] {
        let opened = Crate::open(folder);
        assert!(opened.0.len() > 5, "{folder}: only {} files", opened.0.len());
        let found = circles(opened.imports());
        let line = |(module, of): (&Module, &BTreeSet<Module>)| {
            let of: Vec<String> = of.iter().map(|module| module.join("/")).collect();
            format!("  {} imports {}", module.join("/"), of.join(", "))
        };
        let lines: Vec<String> = found.iter().map(line).collect();
        assert!(lines.is_empty(), "{folder}/src has a circle among these files:\n{}", lines.join("\n"));
    }
}
