//! Every file in `configs/` parses, is in range, and says the truth about the defaults.

use std::path::{Path, PathBuf};

use murmur::settings::{NodeSettings, declared, load_node_settings, load_run_manifest};
use murmur_protocol::RunManifest;

fn configs(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(kind);
    let files: Vec<PathBuf> = std::fs::read_dir(folder).expect("there").flatten().map(|entry| entry.path()).collect();
    assert!(!files.is_empty());
    files
}

#[test]
fn every_run_file_is_valid() {
    for path in configs("runs") {
        load_run_manifest(&path).unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
    }
}

#[test]
fn every_node_file_is_valid() {
    for path in configs("nodes") {
        load_node_settings(&path).unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
    }
}

/// A run's id is a hash of its file in canonical form, and members of one run know each other by it: a field that is written in
/// another way makes strangers of them. What adds a field to run files changes these ids, and says so here.
#[test]
fn the_ids_of_the_run_files_are_what_they_were() {
    let ids = |(name, _): (&'static str, &str)| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/runs").join(format!("{name}.toml"));
        let mut manifest = load_run_manifest(&path).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        // As a founder fills it in.
        manifest.gossip = manifest.gossip.sized(1);
        (name, manifest.run_id().to_string())
    };
    let expected = [
        ("digits", "0c0edfd3a060b5fd"),
        ("lora", "dde09cae79db7a6c"),
        ("stories", "77d99ac5b79256b7"),
        ("table", "a4272b26744026d7"),
        ("text", "5dffdf725601f66e"),
    ];
    assert_eq!(configs("runs").len(), expected.len());
    assert_eq!(expected.map(ids), expected.map(|(name, id)| (name, id.to_owned())));
}

/// The annotated files show every key, at its default or as the built-in run has it, so that a reader need not look anywhere else.
#[test]
fn the_annotated_files_hold_every_key_at_its_default() {
    let read = |path: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(path);
        std::fs::read_to_string(path).expect("there").parse::<toml::Table>().expect("TOML")
    };
    assert_eq!(read("runs/stories.toml"), toml::Table::try_from(RunManifest::built_in()).expect("a table"));
    assert_eq!(read("nodes/default.toml"), toml::Table::try_from(NodeSettings::default()).expect("a table"));
}

/// The comments above a key, of which several keys may have the same.
fn comment_above(text: &str, key: &str) -> String {
    let (section, name) = key.split_once('.').expect("a section and a key");
    let (_, below) = text.split_once(&format!("\n[{section}]\n")).unwrap_or_else(|| panic!("no [{section}]"));
    let (mut comment, mut is_in_comment) = (String::new(), false);
    for line in below.lines() {
        match line.strip_prefix('#') {
            Some(words) if is_in_comment => comment += words,
            Some(words) => comment = words.to_owned(),
            None if line.starts_with(&format!("{name} = ")) => return comment,
            None => {}
        }
        is_in_comment = line.starts_with('#');
    }
    panic!("no {key}")
}

#[test]
fn the_annotated_node_file_says_every_range_as_messages_do() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/nodes/default.toml");
    let text = std::fs::read_to_string(path).expect("there");
    let ranges: Vec<(&str, &str)> =
        declared().iter().filter_map(|setting| Some((setting.key(), setting.range()?))).collect();
    assert!(ranges.len() > 15, "{} settings with a range", ranges.len());
    let untold: Vec<String> = ranges
        .into_iter()
        .filter(|(key, range)| !comment_above(&text, key).contains(range))
        .map(|(key, range)| format!("{key}: {range}"))
        .collect();
    assert!(untold.is_empty(), "configs/nodes/default.toml does not say\n{}", untold.join("\n"));
}

/// A value beyond its range is refused with the range, whose numbers stand above the key.
#[test]
fn the_annotated_run_file_says_the_numbers_of_every_range() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/runs/stories.toml");
    let text = std::fs::read_to_string(path).expect("there");
    let table: toml::Table = text.parse().expect("TOML");
    let numbers = |text: &str| -> Vec<String> {
        let parts = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
        parts.map(|part| part.trim_end_matches('.').to_owned()).filter(|part| !part.is_empty()).collect()
    };
    let (mut untold, mut checked) = (Vec::new(), 0);
    for (section, fields) in &table {
        for (name, value) in fields.as_table().expect("a section") {
            let beyond = match value {
                toml::Value::Integer(_) => toml::Value::Integer(4_000_000_000),
                toml::Value::Float(_) => toml::Value::Float(1e300),
                _ => continue,
            };
            let mut wrong = table.clone();
            wrong[section].as_table_mut().expect("a section").insert(name.clone(), beyond);
            let Ok(manifest) = wrong.try_into::<RunManifest>() else { continue };
            let key = format!("{section}.{name}");
            let Err(error) = manifest.validate() else { continue };
            let error = error.to_string();
            let Some(rule) = error.strip_prefix(&format!("{key} = ")).and_then(|rest| rest.split_once(": ")) else {
                continue;
            };
            checked += 1;
            let told = numbers(&comment_above(&text, &key));
            let missing = numbers(rule.1).into_iter().any(|number| !told.contains(&number));
            untold.extend(missing.then(|| format!("{key}: {}", rule.1)));
        }
    }
    assert!(checked > 30, "{checked} keys with a range");
    assert!(untold.is_empty(), "configs/runs/stories.toml does not say\n{}", untold.join("\n"));
}
