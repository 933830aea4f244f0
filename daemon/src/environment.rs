//! Environment variables that look like options and are none: misspelt ones would be ignored without a word. And those that are
//! some, where their values are wrong.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

use crate::console::note;
use crate::failure::shortened;
use crate::process::background::IN_BACKGROUND;
use crate::settings::nearest;

const PREFIX: &str = "MURMUR_";

/// Variables that `--help` names one by one.
const VARIABLES_MAX: usize = 9;

/// For tests and scripts.
const OTHERS: [&str; 4] = ["MURMUR_TEST_", "MURMUR_BENCH_", "MURMUR_EMULATED", IN_BACKGROUND];

/// The variables among these that are set and empty. Service files and scripts mean by it that nothing is set.
pub fn empty_among(set: impl Iterator<Item = (OsString, OsString)>) -> Vec<OsString> {
    let is_own = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name != IN_BACKGROUND);
    set.filter(|(name, value)| value.is_empty() && is_own(name)).map(|(name, _)| name).collect()
}

/// Tells which variables are set that no option of any command below this one reads.
pub fn tell_unknown_variables(command: &clap::Command) {
    let typed = typed_command(command, std::env::args_os().skip(1));
    for (name, meant) in unknown_among(command, std::env::vars_os().map(|(name, _)| name)) {
        note(&format!(
            "warning: the environment variable {name} is ignored: {}",
            why_ignored(command, typed, &name, meant)
        ));
    }
}

/// Why no option reads a variable, and what to do where this is known of the command that was typed.
fn why_ignored(all: &clap::Command, typed: &clap::Command, name: &str, meant: Option<String>) -> String {
    let option = name[PREFIX.len()..].to_lowercase().replace('_', "-");
    if typed.get_arguments().any(|known| known.get_long() == Some(&option)) {
        return format!("--{option} has to be typed");
    }
    if has_option(all, &option) {
        return "no option reads it".to_owned();
    }
    let hint = meant.map_or(String::new(), |meant| format!("\nhint: did you mean {meant}?"));
    format!("no option has this name{hint}")
}

/// The command that words ask for, the innermost one.
fn typed_command(command: &clap::Command, words: impl Iterator<Item = OsString>) -> &clap::Command {
    words.fold(command, |command, word| word.to_str().and_then(|word| command.find_subcommand(word)).unwrap_or(command))
}

/// Tells which variables are set for a daemon of one's own, and do not hold for those of `murmur local`.
pub(crate) fn tell_what_local_daemons_do_not_hear(command: &clap::Command) {
    let set = std::env::vars_os().map(|(name, _)| name);
    let names = of_own_daemon_alone(command, set);
    if !names.is_empty() {
        let (hold, them) = if names.len() == 1 { ("does not hold", "it") } else { ("do not hold", "them") };
        let names = names.join(", ");
        note(&format!(
            "warning: {names} in the environment {hold} for these daemons: `murmur start` and `join` read {them}"
        ));
    }
}

/// The variables among these that `start` reads, and `local` does not.
fn of_own_daemon_alone(command: &clap::Command, set: impl Iterator<Item = OsString>) -> Vec<String> {
    let of = |name: &str| {
        let mut variables = Vec::new();
        command.find_subcommand(name).into_iter().for_each(|command| add_variables(command, &mut variables));
        variables
    };
    let (start, local) = (of("start"), of("local"));
    let is_one = |name: &String| name != IN_BACKGROUND && start.contains(name) && !local.contains(name);
    let mut names: Vec<String> = set.filter_map(|name| name.into_string().ok()).filter(is_one).collect();
    names.sort_unstable();
    names
}

/// Which options of a command are environment variables as well, for its `--help`: those that are, or, where they are many, those
/// that are not.
pub(crate) fn sentence(command: &clap::Command) -> Option<String> {
    let shown = command.get_opts().filter(|option| !option.is_hide_set() && !option.is_global_set());
    let (with, without): (Vec<_>, Vec<_>) = shown.partition(|option| option.get_env().is_some());
    let variables: Vec<&str> = with.iter().filter_map(|option| option.get_env()?.to_str()).collect();
    let others: Vec<String> = without.iter().filter_map(|option| Some(format!("--{}", option.get_long()?))).collect();
    match variables.as_slice() {
        [] => None,
        few if few.len() <= VARIABLES_MAX => {
            Some(format!("Environment variables that say the same: {}.", few.join(", ")))
        }
        _ if others.is_empty() => {
            Some("All options are environment variables as well, such as MURMUR_FORMAT.".to_owned())
        }
        _ => {
            let others = others.join(", ");
            Some(format!("All options but {others} are environment variables as well, such as MURMUR_FORMAT."))
        }
    }
}

/// An error over the value of an option, which names its variable where the option was not typed.
pub(crate) fn named_in(
    command: &clap::Command,
    mut error: clap::Error,
    typed: &[OsString],
    is_set: impl Fn(&str) -> bool,
) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let option = option.split([' ', '[', '=']).next().unwrap_or_default();
    if let Some(variable) = option.strip_prefix("--").and_then(|name| variable_behind(command, name, typed, is_set)) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// An error that tells only the beginning of a word without end.
pub(crate) fn shortened_in(mut error: clap::Error) -> clap::Error {
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidSubcommand, ContextKind::InvalidArg] {
        let value = match error.get(kind) {
            Some(ContextValue::String(value)) => shortened(value),
            _ => continue,
        };
        error.insert(kind, ContextValue::String(value));
    }
    error
}

/// Where the value of an option of this process comes from: the option, or its variable.
pub(crate) fn origin(command: &clap::Command, option: &str) -> String {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let variable = variable_behind(command, option, &typed, |variable| std::env::var_os(variable).is_some());
    variable.unwrap_or_else(|| format!("--{option}"))
}

/// The variable of an option that was not typed, where it is set.
fn variable_behind(
    command: &clap::Command,
    option: &str,
    typed: &[OsString],
    is_set: impl Fn(&str) -> bool,
) -> Option<String> {
    let is_it = |word: &OsString| {
        let rest = word.to_str().and_then(|word| word.strip_prefix("--")?.strip_prefix(option));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let variable = format!("{PREFIX}{}", option.replace('-', "_").to_uppercase());
    let mut known = Vec::new();
    add_variables(command, &mut known);
    let is_variable = !typed.iter().any(is_it) && known.contains(&variable) && is_set(&variable);
    is_variable.then(|| format!("{variable} in the environment"))
}

/// Each with the name that was probably meant.
fn unknown_among(command: &clap::Command, set: impl Iterator<Item = OsString>) -> Vec<(String, Option<String>)> {
    let set = set.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with(PREFIX));
    let set: Vec<String> = set.filter(|name| !OTHERS.iter().any(|other| name.starts_with(other))).collect();
    if set.is_empty() {
        return Vec::new();
    }
    let mut known = Vec::new();
    add_variables(command, &mut known);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let unknown = set.into_iter().filter(|name| !known.contains(&name.as_str()));
    unknown.map(|name| (nearest(&name, &known).map(str::to_owned), name)).map(|(meant, name)| (name, meant)).collect()
}

/// Whether a command, or one below it, has an option of this name.
fn has_option(command: &clap::Command, name: &str) -> bool {
    command.get_arguments().any(|option| option.get_long() == Some(name))
        || command.get_subcommands().any(|below| has_option(below, name))
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

    /// What is said of a wrong value, with these variables set.
    fn said(words: &[&str], set: &[&str]) -> String {
        let mut command = crate::cli::command();
        command = command.mut_subcommand("doctor", |doctor| {
            // As if the environment had it.
            let wrong = |option: clap::Arg| if set.is_empty() { option } else { option.default_value("x") };
            doctor.mut_arg("upload-mbit", wrong)
        });
        let typed: Vec<OsString> = words.iter().map(OsString::from).collect();
        let error = command.clone().try_get_matches_from(&typed).expect_err("a wrong value");
        named_in(&command, error, &typed, |variable| set.contains(&variable)).to_string()
    }

    #[test]
    fn a_wrong_value_is_that_of_the_option_or_of_the_variable_that_has_it() {
        let variable = said(&["murmur", "doctor"], &["MURMUR_UPLOAD_MBIT"]);
        assert!(
            variable.starts_with("error: invalid value 'x' for 'MURMUR_UPLOAD_MBIT in the environment'"),
            "{variable}"
        );
        for words in [&["murmur", "doctor", "--upload-mbit=y"][..], &["murmur", "doctor", "--upload-mbit", "y"]] {
            let option = said(words, &["MURMUR_UPLOAD_MBIT"]);
            assert!(option.starts_with("error: invalid value 'y' for '--upload-mbit <MBIT>'"), "{option}");
        }
    }

    #[test]
    fn what_is_set_for_a_daemon_of_ones_own_alone_is_told_to_who_starts_local_ones() {
        let set =
            ["MURMUR_UPLOAD_MBIT", "MURMUR_DATA_DIR", "MURMUR_TRAINING_PERCENT", "MURMUR_DATA", "MURMUR_LOG", "PATH"];
        assert_eq!(
            of_own_daemon_alone(&crate::cli::command(), set.into_iter().map(OsString::from)),
            ["MURMUR_DATA_DIR", "MURMUR_UPLOAD_MBIT"]
        );
    }

    #[test]
    fn an_option_is_advised_only_where_the_command_has_it() {
        let all = crate::cli::command();
        let said = |words: &[&str], name: &str| {
            let typed = typed_command(&all, words.iter().map(OsString::from));
            why_ignored(&all, typed, name, None)
        };
        assert_eq!(said(&["block"], "MURMUR_RUN"), "--run has to be typed");
        assert_eq!(said(&["status", "block"], "MURMUR_RUN"), "no option reads it");
        assert_eq!(said(&["join"], "MURMUR_TICKET"), "no option reads it");
        assert_eq!(said(&["sim", "run", "churn"], "MURMUR_SEEDS"), "--seeds has to be typed");
        assert_eq!(said(&["start"], "MURMUR_COLOUR"), "no option has this name");
    }

    #[test]
    fn variables_that_are_empty_are_not_set() {
        let set = [("MURMUR_DATA", ""), ("MURMUR_FORMAT", "json"), ("PATH", ""), (IN_BACKGROUND, "")];
        let set = set.into_iter().map(|(name, value)| (name.into(), value.into()));
        assert_eq!(empty_among(set), ["MURMUR_DATA"]);
    }

    #[test]
    fn misspelt_variables_are_told_with_what_was_meant() {
        let set = ["MURMUR_UPLAOD_MBIT", "MURMUR_UPLOAD_MBIT", "MURMUR_LOG", "MURMUR_TEST_PYTHON", "PATH"];
        let meant = Some("MURMUR_UPLOAD_MBIT".to_owned());
        assert_eq!(
            unknown_among(&crate::cli::command(), set.into_iter().map(OsString::from)),
            [("MURMUR_UPLAOD_MBIT".to_owned(), meant)]
        );
    }
}
