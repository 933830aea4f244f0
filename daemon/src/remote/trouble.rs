//! What keeps a remote place from being read, each with its remedy. No text here holds a key: places are shown by
//! [`address`](super::address).

use std::path::PathBuf;

use super::address::NoPlace;
use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};

/// Why something remote did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// The address names no place.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// The place is not one for this use.
    #[error("{place} {reason}")]
    Unfit { place: String, reason: &'static str, hint: String },
    /// There is nothing.
    #[error("{place} does not exist{}", said(.words))]
    NotFound { place: String, words: String, hint: String },
    /// A key is missing or wrong.
    #[error("{place} refuses access{}", said(.words))]
    Denied { place: String, words: String, hint: String },
    /// Nobody answers.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable { host: String, reason: String },
    /// The owner's hours or budget keep it.
    #[error("{place} is not asked now: {reason}")]
    Resting { place: String, reason: String },
    /// The line breaks again and again.
    #[error("{place} broke off {attempts} times in a row: {reason}")]
    Broken { place: String, attempts: u32, reason: String },
    /// The server has trouble of its own, or does what nobody expects.
    #[error("{place}: {words}")]
    Server { place: String, words: String, is_passing: bool },
    /// It is a page for people.
    #[error("{place} is a web page, not a file of data")]
    Page { place: String },
    /// It is not what its address, its store or the hub says.
    #[error("{place} does not have the {what} that {by} names: expected {expected}, found {found}")]
    Other { place: String, what: &'static str, by: &'static str, expected: String, found: String },
    /// A place leads where it may not lead.
    #[error("{place} leads to {to}, {reason}")]
    Astray { place: String, to: String, reason: &'static str },
    /// It has a name that no file may have.
    #[error("{place} holds {name:?}, a name that no file here may have")]
    Name { place: String, name: String },
    /// The disk is too small.
    #[error("{place} takes {}, and {} can be loaded into {}", human_bytes(*.needed), human_bytes(*.free), .folder.display())]
    NoRoom { place: String, needed: u64, free: u64, folder: PathBuf },
    /// The disk cannot be written.
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: std::io::Error },
    /// There is no network, and not enough in the cache.
    #[error("{place} is not in the cache, and {reason}")]
    NotCached { place: String, reason: String },
}

/// A server's own words, where it has said any.
fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

impl Trouble {
    /// Whether there is no way to the place at the moment: what is in the cache then serves.
    pub(super) fn is_offline(&self) -> bool {
        let is_passing = matches!(self, Trouble::Server { is_passing: true, .. });
        is_passing || matches!(self, Trouble::Unreachable { .. } | Trouble::Resting { .. } | Trouble::Broken { .. })
    }

    fn hint(&self) -> String {
        let hint = match self {
            Trouble::NoPlace(error) => error.hint,
            Trouble::Unfit { hint, .. } | Trouble::NotFound { hint, .. } | Trouble::Denied { hint, .. } => hint,
            Trouble::Unreachable { .. } => {
                "is the address right, and is there a network? HTTPS_PROXY names a proxy, SSL_CERT_FILE certificates of \
                 one's own"
            }
            Trouble::Resting { .. } | Trouble::Broken { .. } | Trouble::Server { is_passing: true, .. } => {
                "the same command goes on where it stopped; what has come is kept"
            }
            Trouble::Server { .. } => "is it the address of a file? `curl -I` shows what the server says",
            Trouble::Page { .. } => "give the address of the file itself, the one behind \"download\" or \"raw\"",
            Trouble::Other { what: "hash", by: "the address", .. } => {
                "ask who gave you the hash; without #sha256=… the file is taken as it is"
            }
            Trouble::Other { .. } => {
                "start again: it is loaded anew; if it comes again, the store itself holds other bytes"
            }
            Trouble::Astray { .. } => {
                "a place that a run names has to be public and encrypted; give the data yourself with --data or --base"
            }
            Trouble::Name { .. } => "give the files one by one, or rename that one",
            Trouble::NoRoom { .. } => "make room there, or name another disk with XDG_CACHE_HOME (HF_HOME for hf://)",
            Trouble::Write { error, .. } if error.kind() == std::io::ErrorKind::StorageFull => {
                "make room there and start again: it goes on where it stopped; XDG_CACHE_HOME (HF_HOME for hf://) names \
                 another disk"
            }
            Trouble::Write { .. } => "XDG_CACHE_HOME names another folder for it (HF_HOME for hf://)",
            Trouble::NotCached { .. } => "start once with a network; HF_HUB_OFFLINE and HF_HOME say where hf:// looks",
        };
        hint.to_owned()
    }

    fn code(&self) -> ExitCode {
        match self {
            Trouble::NoPlace(_) | Trouble::Unfit { .. } => ExitCode::Settings,
            Trouble::NotFound { .. }
            | Trouble::Denied { .. }
            | Trouble::Unreachable { .. }
            | Trouble::Resting { .. }
            | Trouble::Broken { .. }
            | Trouble::Server { .. }
            | Trouble::Astray { .. }
            | Trouble::NotCached { .. } => ExitCode::Network,
            Trouble::Page { .. }
            | Trouble::Other { .. }
            | Trouble::Name { .. }
            | Trouble::NoRoom { .. }
            | Trouble::Write { .. } => ExitCode::Files,
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        Failure::new(trouble.code(), trouble.to_string()).hint(trouble.hint())
    }
}
