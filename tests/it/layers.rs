//! The layers point one way: the table in `src/docs/architecture.md`, kept true by reading the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Open to all: they know no layer, except that an error carries the kind of a refusal.
const COMMON: [&str; 5] = ["error", "ids", "limits", "observe", "event::RefusalKind"];

/// What is confined, to which place, and the places beside it that architecture.md gives a reason for.
const CONFINED: [(&str, &[&str]); 10] = [
    ("bincode", &["format/codec.rs"]),
    ("crc32fast", &["format/checksum.rs"]),
    ("memmap2", &["storage/mmap.rs"]),
    ("zstd", &["format/compress.rs"]),
    ("zstd_safe", &["format/compress.rs"]),
    ("rusqlite", &["import/database/", "export/sqlite.rs"]),
    ("tracing", &["observe.rs"]),
    ("fs", &["storage/", "import/", "export/", "repair/"]),
    ("SystemTime", &["store/options.rs"]),
    ("RandomState", &["store/options.rs"]),
];

#[test]
fn modules_use_only_the_layers_below_them() {
    let allowed = documented_table();
    assert!(allowed.len() >= 8, "architecture.md has a row for each layer: {allowed:?}");
    let layers: BTreeSet<String> = allowed.keys().cloned().collect();
    let mut broken = Vec::new();
    for (layer, below) in &allowed {
        for file in sources(&root().join("src").join(layer)) {
            let used = used_layers(&code_of(&file), &layers);
            let wrong = used.iter().filter(|used| *used != layer && !below.contains(*used));
            broken.extend(wrong.map(|used| format!("{} uses {used}", file.display())));
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn every_layer_directory_has_a_row() {
    let allowed = documented_table();
    let entries = fs::read_dir(root().join("src")).unwrap().map(Result::unwrap);
    let names = entries.filter(|e| e.path().is_dir()).map(|e| e.file_name().into_string().unwrap());
    let missing: Vec<_> = names.filter(|name| name != "docs" && !allowed.contains_key(name)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn only_the_named_modules_call_what_is_confined_to_them() {
    let mut broken = Vec::new();
    for file in sources(&root().join("src")) {
        let name = file.strip_prefix(root().join("src")).unwrap().to_str().unwrap().replace('\\', "/");
        let code = code_of(&file);
        for (word, homes) in CONFINED {
            if paths(&code).any(|part| part == word) && !homes.iter().any(|home| name.starts_with(home)) {
                broken.push(format!("{name} uses {word}"));
            }
        }
        if ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|w| code.contains(w))
            && !name.ends_with("mmap.rs")
        {
            broken.push(format!("{name} is unsafe"));
        }
    }
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn the_check_itself_finds_what_it_looks_for() {
    let layers: BTreeSet<String> = ["log", "event", "store"].map(str::to_owned).into();
    let found = |code: &str| used_layers(code, &layers).into_iter().collect::<Vec<_>>();
    assert_eq!(found("use crate::log::Batch;"), ["log"]);
    assert_eq!(found("use crate::{Error, event::Event, store};"), ["event", "store"]);
    assert_eq!(found("use crate::event::{Admitted, log};"), ["event"]);
    assert_eq!(found("let x = crate::store::Store::open(p);"), ["store"]);
    assert_eq!(found("use crate::ids::Seq;"), Vec::<String>::new());
    assert!(paths("use std::fs::File;").any(|part| part == "fs"));
}

/// Rows of the layer table: module, then what it may use.
fn documented_table() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("src/docs/architecture.md")).unwrap();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("| module |"));
    let columns = cells(lines.next().expect("architecture.md has the layer table"));
    let mut table = BTreeMap::new();
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let row = cells(line);
        let used = columns.iter().zip(&row).skip(1).filter(|(_, mark)| *mark == "x");
        let used: BTreeSet<String> = used.map(|(column, _)| column.clone()).collect();
        table.extend(row[0].split(", ").map(|module| (module.to_owned(), used.clone())));
    }
    table
}

fn cells(line: &str) -> Vec<String> {
    let inner = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')).unwrap_or(line);
    inner.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The layers that code names behind `crate::`.
fn used_layers(code: &str, layers: &BTreeSet<String>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let path = &code[at + prefix.len()..];
        if COMMON.iter().any(|common| path.starts_with(common)) {
            continue;
        }
        let heads: Vec<&str> = match path.strip_prefix('{') {
            Some(list) => outer_items(list),
            None => vec![path],
        };
        let head = |item: &str| {
            item.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
        };
        used.extend(heads.iter().filter_map(|item| head(item)).filter(|name| layers.contains(name)));
    }
    used
}

/// The items of a use list, without looking into nested lists.
fn outer_items(list: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&list[start..at]);
                return items;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

/// The words that stand before or behind a `::`.
fn paths(code: &str) -> impl Iterator<Item = &str> {
    let word = |text: &'_ str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_');
    code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        .filter(|path| path.contains("::"))
        .flat_map(|path| path.split("::"))
        .filter(move |part| word(part))
}

/// The file without its unit tests and comments.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The Rust files below a directory, tests aside.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
