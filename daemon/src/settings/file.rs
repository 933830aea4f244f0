//! Reading TOML so that a mistake is found at once: file, line, key, and the key that was probably meant.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::ManifestError;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use super::NodeSettings;
use crate::console::quoted;
use crate::failure::{ExitCode, Failure};
use crate::store::Run;

/// The largest settings file read, in bytes. Ours are about 3 KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Writes annotated run and node files.
const EXAMPLE: &str = "murmur init";

/// Reads and checks a run file.
///
/// # Errors
/// When it cannot be read, is no run file or has a value out of range.
pub fn load_run_manifest(path: &Path) -> Result<RunManifest, Failure> {
    let text = read(path, "run")?;
    let mut manifest: RunManifest =
        parse(path, &text, EXAMPLE).map_err(|failure| of_other_kind(path, &text, "run", failure))?;
    // So the built-in run with a topology is a sound run.
    manifest.drop_needless_matching();
    manifest.validate().map_err(|error| match error {
        ManifestError::OutOfRange { field, value, rule } => out_of_range(path, &text, field, &value, rule),
        other => Failure::new(ExitCode::Settings, format!("{}: {other}", path.display())),
    })?;
    Ok(manifest)
}

/// Reads and checks a node file.
///
/// # Errors
/// When it cannot be read, is no node file or has a value out of range.
pub fn load_node_settings(path: &Path) -> Result<NodeSettings, Failure> {
    let text = read(path, "node")?;
    let settings: NodeSettings =
        parse(path, &text, EXAMPLE).map_err(|failure| of_other_kind(path, &text, "node", failure))?;
    settings.validate().map_err(|wrong| out_of_range(path, &text, wrong.key, &wrong.value, &wrong.takes))?;
    Ok(settings)
}

fn read(path: &Path, kind: &str) -> Result<String, Failure> {
    let unreadable = |error: std::io::Error| {
        let is_absent = kind == "run" && error.kind() == std::io::ErrorKind::NotFound;
        let init = "`murmur init` writes annotated run.toml and node.toml files to begin with";
        Failure::new(ExitCode::Settings, format!("cannot read the {kind} file {}: {error}", path.display()))
            .hint(is_absent.then(|| meant_by(path)).flatten().unwrap_or_else(|| init.to_owned()))
    };
    bounded(path, FILE_BYTES_MAX).map_err(unreadable)?.ok_or_else(|| too_long(path, kind, FILE_BYTES_MAX))
}

/// What was probably meant by a run file that is not there: a run of this machine by its name, or what is meant where there is none.
fn meant_by(path: &Path) -> Option<String> {
    let run = Run::named(path).filter(|run| run.nodes == [run.directory.as_path()]);
    let goes_on = |run: Run| {
        let folder = quoted(&run.directory);
        format!("that is a run of this machine: `murmur start --data-dir {folder}` goes on with it")
    };
    run.map(goes_on).or_else(|| meant_without(path))
}

/// A file by its name without the ending, or the built-in run.
fn meant_without(path: &Path) -> Option<String> {
    let file = path.with_added_extension("toml");
    if let Some(file) = [file.clone(), Path::new("configs/runs").join(&file)].iter().find(|file| file.is_file()) {
        return Some(format!("did you mean {}?", quoted(file)));
    }
    let built_in = RunManifest::built_in().run.name;
    (path.to_str() == Some(&built_in)).then(|| {
        format!(
            "the built-in run {built_in} needs no run file: leave the word out; or `murmur init` writes it as run.toml"
        )
    })
}

/// The text of a file, a pipe or a device; none where it has more bytes than that: a device may have no end, and says no length.
///
/// # Errors
/// When it cannot be read, or is no text.
pub(crate) fn bounded(path: &Path, bytes_max: u64) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Ok(None);
    }
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidData, "it is no text (UTF-8)"))
}

/// A refusal of what is no file of this kind for its length.
pub(crate) fn too_long(path: &Path, kind: &str, bytes_max: u64) -> Failure {
    let message = format!("{} has more than {bytes_max} bytes: that is no {kind} file", path.display());
    Failure::new(ExitCode::Settings, message)
}

/// A better refusal where a file is none of the `wanted` kind (run, node or scenario), but a sound one of another kind.
pub(crate) fn of_other_kind(path: &Path, text: &str, wanted: &str, failure: Failure) -> Failure {
    let has_keys = toml::from_str::<toml::Table>(text).is_ok_and(|table| !table.is_empty());
    let (kind, hint) = if has_keys && wanted != "node" && toml::from_str::<NodeSettings>(text).is_ok() {
        ("node", "commands that take a node file take it after --node, as in `murmur start run.toml --node node.toml`")
    } else if has_keys && wanted != "run" && toml::from_str::<RunManifest>(text).is_ok() {
        ("run", "`murmur start` and `murmur local` take it, without an option in front")
    } else {
        return failure;
    };
    let message = format!("{} is a {kind} file where a {wanted} file belongs", path.display());
    Failure::new(ExitCode::Settings, message).hint(hint)
}

/// Reads TOML, also for the scenarios of the simulator. `example` names the command that writes an annotated file of the
/// kind.
///
/// # Errors
/// The first mistake, with its line and the place in it.
pub(crate) fn parse<Settings: DeserializeOwned>(path: &Path, text: &str, example: &str) -> Result<Settings, Failure> {
    toml::from_str(text).map_err(|error| {
        let message = error.message();
        let without_meaning = key_without_meaning(message).and_then(|key| span_of_field(text, key));
        let span = without_meaning.clone().or(error.span()).unwrap_or(0..0);
        let refusal = |what: &str| {
            let place = format!("{}:{}", path.display(), line_at(text, span.start));
            Failure::new(ExitCode::Settings, format!("{place}: {what}{}", excerpt(text, &span)))
        };
        if let Some((key, valid)) = unknown_key(message) {
            let failure = refusal(&format!("unknown key `{key}`"));
            if let Some(place) = place_of_key(key).filter(|_| example == EXAMPLE) {
                return failure.hint(format!("`{key}` belongs in {place}"));
            }
            return match nearest(key, &valid) {
                Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
                None => failure.hint(format!("valid keys here: {}", valid.join(", "))),
            };
        }
        if without_meaning.is_some() {
            return refusal(message).hint("take the line out, or set model.kind to the kind that you mean");
        }
        // serde marks where the section begins; what is set first in the file has no part in it.
        if let Some(missing) = message.strip_prefix("missing field ") {
            let line = if span.start == 0 { String::new() } else { format!(":{}", line_at(text, span.start)) };
            let message = format!("{}{line}: the key {} is missing", path.display(), missing.trim_end());
            let hint = format!("`{example}` shows every key with its type and range");
            return Failure::new(ExitCode::Settings, message).hint(hint);
        }
        let message = message.replace('\n', "; ");
        let what = match key_at(text, span.start) {
            Some(key) => wrong_value(&message).map_or(format!("{key}: {message}"), |wrong| format!("{key} {wrong}")),
            None => message,
        };
        refusal(&what).hint(format!("`{example}` shows every key with its type and range"))
    })
}

/// What serde says of a value that it cannot read, in words for people.
fn wrong_value(message: &str) -> Option<String> {
    let (given, wanted) = message.split_once(": ")?.1.rsplit_once(", expected ")?;
    let is_wrong_type = message.starts_with("invalid type") || message.starts_with("invalid value");
    let is_too_large = message.starts_with("invalid value: integer") && !given.contains('-');
    let wanted = match wanted {
        "u8" if is_too_large => "a whole number, 255 at most",
        "u16" if is_too_large => "a whole number, 65535 at most",
        "u32" if is_too_large => "a whole number, 4294967295 at most",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not negative",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "path string" => "text in quotes",
        "a sequence" => "a list in brackets",
        other if other.starts_with("struct ") => "keys of its own, in a section [in brackets]",
        _ => return None,
    };
    // Of a number that is too large for any of our types it also names its own.
    let given = given.trim_end_matches(" as i128").trim_end_matches(" as u128").replace('`', "");
    is_wrong_type.then(|| format!("takes {wanted}, not the {given}"))
}

/// The line with a mistake, and a mark below the mistake.
fn excerpt(text: &str, span: &Range<usize>) -> String {
    let from = text[..floor_of_character(text, span.start)].rfind('\n').map_or(0, |end| end + 1);
    let line = text[from..].lines().next().unwrap_or_default();
    if line.trim().is_empty() {
        return String::new();
    }
    let within = |offset: usize| floor_of_character(line, offset.saturating_sub(from).min(line.len()));
    let (start, end) = (within(span.start), within(span.end));
    let number = line_at(text, span.start).to_string();
    // A tab stays one, so that the mark stands below what it marks.
    let indent: String = line[..start].chars().map(|character| if character == '\t' { '\t' } else { ' ' }).collect();
    let mark = "^".repeat(line[start..end].chars().count().max(1));
    let margin = " ".repeat(number.len());
    format!("\n  {number} | {line}\n  {margin} | {indent}{mark}")
}

fn floor_of_character(text: &str, offset: usize) -> usize {
    (0..=offset.min(text.len())).rev().find(|offset| text.is_char_boundary(*offset)).unwrap_or(0)
}

/// The key whose value stands at an offset, with those of its sections: `model.layers`.
fn key_at(text: &str, offset: usize) -> Option<String> {
    fn below(table: &DeTable<'_>, offset: usize) -> Option<String> {
        for (name, value) in table.iter() {
            if let DeValue::Table(keys) = value.get_ref()
                && let Some(key) = below(keys, offset)
            {
                return Some(format!("{}.{key}", name.get_ref()));
            }
            if value.span().contains(&offset) || name.span().contains(&offset) {
                return Some(name.get_ref().to_string());
            }
        }
        None
    }
    below(DeTable::parse(text).ok()?.get_ref(), offset)
}

/// serde names an unknown field and the valid ones only in its message; a test below holds the form.
fn unknown_key(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let key = quoted.next()?;
    Some((key, quoted.collect()))
}

/// Where a key of this name belongs, if in one place only: such as `[limits] of a node file`.
fn place_of_key(key: &str) -> Option<String> {
    let files = [
        ("node", toml::Table::try_from(NodeSettings::default())),
        ("run", toml::Table::try_from(RunManifest::default())),
    ];
    let mut places = files.iter().flat_map(|(kind, file)| {
        let sections = file.iter().flatten();
        let has_key = |value: &toml::Value| value.as_table().is_some_and(|section| section.contains_key(key));
        sections.filter(move |(_, value)| has_key(value)).map(move |(name, _)| format!("[{name}] of a {kind} file"))
    });
    places.next().filter(|_| places.next().is_none())
}

/// Of a message that a key has no meaning for a model of the file's kind; a test below holds the form.
fn key_without_meaning(message: &str) -> Option<&str> {
    let (given, _) = message.split_once(" has no meaning for a model of kind ")?;
    given.split_once(" = ").map(|(key, _)| key)
}

/// The candidate that was probably meant.
pub(crate) fn nearest<'a>(key: &str, valid: &[&'a str]) -> Option<&'a str> {
    let scored = valid.iter().map(|candidate| (strsim::jaro_winkler(key, candidate), *candidate));
    // Below this, a suggestion is noise.
    scored.filter(|(score, _)| *score > 0.7).max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}

/// What is wrong with a value that is not taken, as it is shown.
pub(crate) fn fault(value: &str) -> &'static str {
    match value.parse::<f64>() {
        Ok(number) if number.is_nan() => "is no number",
        Ok(_) => "is out of range",
        Err(_) => "is not valid",
    }
}

/// A refusal of a value, with its line. `field`: such as `gossip.gamma`, or a key of no section.
pub(crate) fn out_of_range(path: &Path, text: &str, field: &str, value: &str, rule: &str) -> Failure {
    let span = span_of_field(text, field);
    let line = span.as_ref().map_or(String::new(), |span| format!(":{}", line_at(text, span.start)));
    let shown = span.map_or(String::new(), |span| excerpt(text, &span));
    let fault = fault(value);
    Failure::new(ExitCode::Settings, format!("{}{line}: {field} = {value} {fault}{shown}", path.display()))
        .hint(format!("it takes {rule}"))
}

/// The line on which `section.key` is set; `None` where the file leaves it at its default.
pub(crate) fn line_of_field(text: &str, field: &str) -> Option<usize> {
    span_of_field(text, field).map(|span| line_at(text, span.start))
}

fn span_of_field(text: &str, field: &str) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let value_in = |keys: &DeTable<'_>, key: &str| Some(keys.iter().find(|(name, _)| name.get_ref() == key)?.1.span());
    let Some((section, key)) = field.split_once('.') else { return value_in(document.get_ref(), field) };
    let section = document.get_ref().iter().find(|(name, _)| name.get_ref() == section)?.1;
    let DeValue::Table(keys) = section.get_ref() else { return None };
    value_in(keys, key)
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_for(text: &str) -> String {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("run.toml");
        std::fs::write(&path, text).expect("written");
        let failure = load_run_manifest(&path).expect_err("a mistake");
        format!("{failure:?}").replace(&directory.path().display().to_string(), "…")
    }

    #[test]
    fn a_run_that_is_named_without_a_file_is_told_how_it_is_begun() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let hint = |name: &Path| load_run_manifest(name).expect_err("no file").remedy().to_owned();
        // A machine may have a run of this name.
        let built_in = meant_without(Path::new("stories")).expect("it is built in");
        assert!(built_in.starts_with("the built-in run stories needs no run file: leave the word out"), "{built_in}");
        let mine = folder.path().join("mine");
        assert!(hint(&mine).starts_with("`murmur init` writes"), "{}", hint(&mine));
        std::fs::write(folder.path().join("mine.toml"), "").expect("written");
        assert_eq!(hint(&mine), format!("did you mean {}?", quoted(&folder.path().join("mine.toml"))));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_key() {
        let message = message_for("[model]\nlayers = 2\nwidht = 64\n");
        assert!(message.contains("…/run.toml:3: unknown key `widht`"), "{message}");
        assert!(message.contains("did you mean `width`?"), "{message}");
    }

    #[test]
    fn a_key_in_a_section_or_a_file_that_it_is_not_of_is_told_where_it_belongs() {
        let message = message_for("[model]\nlayers = 2\ngamma = 0.4\n");
        assert!(message.contains("`gamma` belongs in [gossip] of a run file"), "{message}");
        let message = message_for("[data]\ntraining_percent = 10\n");
        assert!(message.contains("`training_percent` belongs in [limits] of a node file"), "{message}");
        let message = message_for("[data]\nkind = 1\n");
        assert!(message.contains("unknown key `kind`") && !message.contains("belongs"), "several: {message}");
    }

    #[test]
    fn what_a_kind_of_model_does_not_have_is_refused_with_its_line() {
        let message = message_for("[model]\nkind = \"mlp\"\nhidden = [16]\nwidth = 96\n[data]\nsource = \"idx\"\n");
        let expected =
            "…/run.toml:4: model.width = 96 has no meaning for a model of kind \\\"mlp\\\"\\n  4 | width = 96\\n";
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("take the line out, or set model.kind"), "{message}");
    }

    #[test]
    fn a_file_of_another_kind_is_told_to_be_one() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("file.toml");
        let with = |text: &str| std::fs::write(&path, text).expect("written");
        with("[network]\nport = 4711\n");
        let failure = load_run_manifest(&path).expect_err("a node file");
        assert!(failure.to_string().ends_with("is a node file where a run file belongs"), "{failure}");
        assert!(failure.remedy().contains("--node"), "{failure}");
        with("[model]\nlayers = 2\n");
        let failure = load_node_settings(&path).expect_err("a run file");
        assert!(failure.to_string().ends_with("is a run file where a node file belongs"), "{failure}");
        with("[network]\nport = 4711\n[model]\nlayers = 2\n");
        let failure = load_run_manifest(&path).expect_err("neither");
        assert!(failure.to_string().contains("unknown key"), "{failure}");
    }

    #[cfg(unix)]
    #[test]
    fn what_has_no_end_is_no_settings_file_and_a_pipe_may_be_one() {
        for kind in ["run", "node"] {
            let refused = match kind {
                "run" => load_run_manifest(Path::new("/dev/zero")).map(drop),
                _ => load_node_settings(Path::new("/dev/zero")).map(drop),
            };
            let expected = format!("/dev/zero has more than 1048576 bytes: that is no {kind} file");
            assert_eq!(refused.expect_err("it has no end").to_string(), expected);
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there").success());
        let path = pipe.clone();
        let writing = std::thread::spawn(move || std::fs::write(path, "[model]\nlayers = 2\n"));
        let manifest = load_run_manifest(&pipe).expect("a run file");
        assert_eq!(manifest.model.transformer().map(|model| model.layers), Some(2));
        writing.join().expect("no panic").expect("written");
    }

    #[test]
    fn the_annotated_run_file_with_a_topology_is_a_synchronous_run() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("run.toml");
        let text =
            include_str!("../../../configs/runs/stories.toml").replace("topology = \"none\"", "topology = \"ring\"");
        std::fs::write(&path, text).expect("written");
        let manifest = load_run_manifest(&path).expect("a run file");
        assert!(manifest.synchronous.is_on() && !manifest.optimizer.match_batch);
    }

    #[test]
    fn a_missing_key_is_named_alone() {
        #[derive(Debug, serde::Deserialize)]
        struct Links {
            #[serde(rename = "up_mbit")]
            _up: f64,
            #[serde(rename = "down_mbit")]
            _down: f64,
        }
        let failure = parse::<Links>(Path::new("links.toml"), "up_mbit = 1\n", EXAMPLE).expect_err("one is missing");
        assert_eq!(failure.to_string(), "links.toml: the key `down_mbit` is missing");
    }

    #[test]
    fn a_wrong_type_is_named_with_key_line_and_place() {
        let refusal =
            |text: &str| parse::<RunManifest>(Path::new("run.toml"), text, EXAMPLE).expect_err("a mistake").to_string();
        let expected = "run.toml:3: model.layers takes a whole number, not negative, not the string \"four\"\n  \
                        3 | layers = \"four\"\n    |          ^^^^^^";
        assert_eq!(refusal("[model]\n\nlayers = \"four\"\n"), expected);
        let cases = [
            ("model.width = -4", "model.width takes a whole number, not negative, not the integer -4", "^^"),
            ("[optimizer]\nlearning_rate = true", "learning_rate takes a number, not the boolean true", "^^^^"),
            ("model.width = 99999999999999999999", "not the integer 99999999999999999999", "^^^^^^^^^^^^^^^^^^^^"),
            ("[gossip]\nbits = 300", "gossip.bits takes a whole number, 255 at most, not the integer 300", "^^^"),
            ("[run]\nname = 7", "run.name takes text in quotes, not the integer 7", "^"),
            ("model = 3", "model takes keys of its own, in a section [in brackets], not the integer 3", "^"),
            ("[data]\n\tshare = \"jä\"", "data.share takes true or false, not the string \"jä\"", "\t        ^^^^"),
            ("[data]\nsource = \"fiels\"", "data.source: unknown variant `fiels`", "^^^^^^^"),
        ];
        for (text, what, mark) in cases {
            let message = refusal(text);
            assert!(message.contains(what) && !message.contains("i128"), "{message}");
            assert!(message.ends_with(&format!(" {mark}")) || message.ends_with(&format!("| {mark}")), "{message}");
        }
        for text in ["[model\n", "x", "= 3", "a = \"ü", "\u{feff}\u{0}", "", "\n\n[[model]]\n"] {
            let _ = parse::<RunManifest>(Path::new("run.toml"), text, EXAMPLE); // no mistake is so bad that it panics
        }
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_line_and_the_range() {
        let message = message_for("[optimizer]\n# fast\nlearning_rate = 2.0\n");
        assert!(message.contains("3 | learning_rate = 2.0\\n    |                 ^^^"), "{message}");
        assert!(message.contains("…/run.toml:3: optimizer.learning_rate = 2 is out of range"), "{message}");
        assert!(message.contains("above 0, at most 1"), "{message}");
    }

    #[test]
    fn a_missing_file_is_named_with_a_way_out() {
        let failure = load_run_manifest(Path::new("/nowhere/run.toml")).expect_err("missing");
        assert!(format!("{failure:?}").contains("murmur init"), "{failure:?}");
    }

    #[test]
    fn node_settings_are_checked() {
        let mut settings = NodeSettings::default();
        assert_eq!(settings.validate(), Ok(()));
        settings.status.address = "0.0.0.0:4780".to_owned();
        assert!(settings.validate().is_err(), "the status page is for this machine only");
        settings = NodeSettings::default();
        settings.network.bootstrap = vec!["192.0.2.7:4711".to_owned()];
        assert!(settings.validate().is_err());
        settings = NodeSettings::default();
        settings.network.upnp = true;
        assert_eq!(settings.validate().is_ok(), cfg!(feature = "upnp"), "what is not built in cannot be switched on");
    }
}
