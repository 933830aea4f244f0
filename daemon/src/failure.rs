//! Failures as a user meets them: what is wrong, the remedy, and an exit code that scripts can act on.

use crate::console::note;
use crate::named;

/// Exit codes of `murmur`; GUIDE.md documents them. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// Anything without a code of its own.
    Failure = 1,
    /// The command line is wrong: also what clap refuses.
    CommandLine = 2,
    /// A settings file, a value or a ticket is wrong.
    Settings = 3,
    /// A port is taken, nobody answers, or a peer refuses.
    Network = 4,
    /// Data, a checkpoint or an identity file is missing or damaged.
    Files = 5,
    /// A second Ctrl-C.
    Interrupted = 130,
}

impl ExitCode {
    /// The meaning of another process's code.
    pub fn of(code: i32) -> ExitCode {
        use ExitCode::{CommandLine, Files, Interrupted, Network, Settings};
        let known = [CommandLine, Settings, Network, Files, Interrupted];
        known.into_iter().find(|known| *known as i32 == code).unwrap_or(ExitCode::Failure)
    }
}

/// Letters of the longest word of a message that is told whole: longer than paths and tickets usually are.
const WORD_LETTERS_MAX: usize = 400;

/// Letters that are told of a longer one.
const WORD_LETTERS_SHOWN: usize = 80;

/// A failure with its remedy.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What is wrong, naming the thing.
    message: String,
    /// What to do about it.
    hint: Option<String>,
    code: ExitCode,
}

impl Failure {
    /// A failure of this kind. Copies of remote places are called as these are.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Failure {
        Failure { message: named::shown(&message.into()), hint: None, code }
    }

    /// With what the process ends.
    pub fn code(&self) -> ExitCode {
        self.code
    }

    /// What to do about it; empty where nothing is known.
    pub fn remedy(&self) -> &str {
        self.hint.as_deref().unwrap_or_default()
    }

    /// Adds the remedy.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

/// What to do where something cannot be written, but for choosing another place.
pub fn to_write(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        PermissionDenied => "let this user write there",
        ReadOnlyFilesystem => "make that disk writable",
        NotADirectory => "move the file away that stands where a folder is to be",
        _ => "make room there",
    }
}

/// A message whose words are of bounded length: values are told as they were given, and some are as long as a file.
pub(crate) fn shortened(message: &str) -> String {
    let mut shown = String::with_capacity(message.len().min(4096));
    for part in message.split_inclusive([' ', '\n']) {
        let word = part.trim_end_matches([' ', '\n']);
        let end_after = |letters: usize| word.char_indices().nth(letters).map(|(end, _)| end);
        match (end_after(WORD_LETTERS_MAX), end_after(WORD_LETTERS_SHOWN)) {
            (Some(_), Some(end)) => {
                shown.push_str(&word[..end]);
                shown.push('…');
                shown.push_str(&part[word.len()..]);
            }
            _ => shown.push_str(part),
        }
    }
    shown
}

/// Prints `error:` and `hint:` lines to stderr and gives the exit code.
pub fn report(error: &anyhow::Error) -> u8 {
    // Also finds one that was added as context, which the chain of causes hides.
    let failure = error.downcast_ref::<Failure>();
    let message = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    note(&format!("error: {}", shortened(&message)));
    if let Some(hint) = failure.and_then(|failure| failure.hint.as_ref()) {
        note(&format!("hint: {hint}"));
    }
    failure.map_or(ExitCode::Failure, |failure| failure.code) as u8
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn values_without_end_are_cut() {
        let message = format!("lr = {} is no number\n  {}", "ü".repeat(3000), "^".repeat(3000));
        let expected = format!("lr = {}… is no number\n  {}…", "ü".repeat(80), "^".repeat(80));
        assert_eq!(shortened(&message), expected);
        let path = format!("cannot read /{}: no such file", "folder/".repeat(40));
        assert_eq!(shortened(&path), path);
    }

    #[test]
    fn room_is_advised_only_where_room_may_be_missing() {
        let advice = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem, ErrorKind::StorageFull];
        let advice = advice.map(|kind| to_write(&Error::from(kind)));
        assert_eq!(advice, ["let this user write there", "make that disk writable", "make room there"]);
    }
}
