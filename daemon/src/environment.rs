//! Environment variables that look like options and are none: misspelt ones would be ignored without a word.

use std::ffi::OsString;

use crate::console::note;
use crate::process::background::IN_BACKGROUND;
use crate::settings::nearest;

const PREFIX: &str = "MURMUR_";

/// For tests and scripts.
const OTHERS: [&str; 4] = ["MURMUR_TEST_", "MURMUR_BENCH_", "MURMUR_EMULATED", IN_BACKGROUND];

/// Tells which variables are set that no option of any command reads.
pub fn tell_unknown_variables() {
    for (name, meant) in unknown_among(std::env::vars_os().map(|(name, _)| name)) {
        let hint = meant.map_or(String::new(), |meant| format!("\nhint: did you mean {meant}?"));
        note(&format!("warning: the environment variable {name} is ignored: no option has this name{hint}"));
    }
}

/// Each with the name that was probably meant.
fn unknown_among(set: impl Iterator<Item = OsString>) -> Vec<(String, Option<String>)> {
    let set = set.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with(PREFIX));
    let set: Vec<String> = set.filter(|name| !OTHERS.iter().any(|other| name.starts_with(other))).collect();
    if set.is_empty() {
        return Vec::new();
    }
    let mut known = Vec::new();
    add_variables(&crate::cli::command(), &mut known);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let unknown = set.into_iter().filter(|name| !known.contains(&name.as_str()));
    unknown.map(|name| (nearest(&name, &known).map(str::to_owned), name)).map(|(meant, name)| (name, meant)).collect()
}

/// The variables of a command's options and of those below it.
fn add_variables(command: &clap::Command, names: &mut Vec<String>) {
    let variables = command.get_arguments().filter_map(|option| option.get_env()?.to_str());
    names.extend(variables.map(str::to_owned));
    command.get_subcommands().for_each(|below| add_variables(below, names));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_are_told_with_what_was_meant() {
        let set = ["MURMUR_UPLAOD_MBIT", "MURMUR_UPLOAD_MBIT", "MURMUR_LOG", "MURMUR_TEST_PYTHON", "PATH"];
        let meant = Some("MURMUR_UPLOAD_MBIT".to_owned());
        assert_eq!(unknown_among(set.into_iter().map(OsString::from)), [("MURMUR_UPLAOD_MBIT".to_owned(), meant)]);
    }
}
