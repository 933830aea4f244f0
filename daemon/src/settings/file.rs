//! Reading TOML so that a mistake is found at once: file, line, key, and the key that was probably meant.

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::ManifestError;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use super::NodeSettings;
use crate::failure::{ExitCode, Failure};

/// The largest settings file read, in bytes. Ours are about 3 KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads and checks a run file.
///
/// # Errors
/// When it cannot be read, is no run file or has a value out of range.
pub fn load_run_manifest(path: &Path) -> Result<RunManifest, Failure> {
    let text = read(path, "run")?;
    let manifest: RunManifest = parse(path, &text)?;
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
    let settings: NodeSettings = parse(path, &text)?;
    settings.validate().map_err(|(field, value, rule)| out_of_range(path, &text, field, &value, rule))?;
    Ok(settings)
}

fn read(path: &Path, kind: &str) -> Result<String, Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::new(ExitCode::Settings, format!("cannot read the {kind} file {}: {error}", path.display()))
            .hint("`murmur init` writes annotated run.toml and node.toml files to begin with")
    };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > FILE_BYTES_MAX {
        let message = format!("{} has {length} bytes: that is no {kind} file", path.display());
        return Err(Failure::new(ExitCode::Settings, message));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// Reads TOML. Also for the scenarios of the simulator.
///
/// # Errors
/// The first mistake, with its line.
pub(crate) fn parse<Settings: DeserializeOwned>(path: &Path, text: &str) -> Result<Settings, Failure> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        let message = error.message();
        let place = format!("{}:{line}", path.display());
        match unknown_key(message) {
            Some((key, valid)) => {
                let failure = Failure::new(ExitCode::Settings, format!("{place}: unknown key `{key}`"));
                match nearest(key, &valid) {
                    Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
                    None => failure.hint(format!("valid keys here: {}", valid.join(", "))),
                }
            }
            None => {
                let failure = Failure::new(ExitCode::Settings, format!("{place}: {}", message.replace('\n', "; ")));
                failure.hint("the files in configs/ show every key with its type and range")
            }
        }
    })
}

/// serde names an unknown field and the valid ones only in its message; a test below holds the form.
fn unknown_key(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let key = quoted.next()?;
    Some((key, quoted.collect()))
}

/// The candidate that was probably meant.
pub(crate) fn nearest<'a>(key: &str, valid: &[&'a str]) -> Option<&'a str> {
    let scored = valid.iter().map(|candidate| (strsim::jaro_winkler(key, candidate), *candidate));
    // Below this, a suggestion is noise.
    scored.filter(|(score, _)| *score > 0.7).max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}

fn out_of_range(path: &Path, text: &str, field: &str, value: &str, rule: &str) -> Failure {
    let line = line_of_field(text, field).map_or(String::new(), |line| format!(":{line}"));
    Failure::new(ExitCode::Settings, format!("{}{line}: {field} = {value} is out of range", path.display()))
        .hint(format!("it takes {rule}"))
}

/// The line on which `section.key` is set; `None` where the file leaves it at its default.
pub(crate) fn line_of_field(text: &str, field: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let (section, key) = field.split_once('.')?;
    let section = document.get_ref().iter().find(|(name, _)| name.get_ref() == section)?.1;
    let DeValue::Table(keys) = section.get_ref() else { return None };
    let (_, value) = keys.iter().find(|(name, _)| name.get_ref() == key)?;
    Some(line_at(text, value.span().start))
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
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_key() {
        let message = message_for("[model]\nlayers = 2\nwidht = 64\n");
        assert!(message.contains("…/run.toml:3: unknown key `widht`"), "{message}");
        assert!(message.contains("did you mean `width`?"), "{message}");
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let message = message_for("[model]\n\nlayers = \"four\"\n");
        assert!(message.contains("…/run.toml:3: invalid type: string \\\"four\\\", expected u32"), "{message}");
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_line_and_the_range() {
        let message = message_for("[optimizer]\n# fast\nlearning_rate = 2.0\n");
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
