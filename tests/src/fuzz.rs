//! Bytes from outside, whatever they are: each [`Target`] reads them as one kind of input and panics where what comes of it is not
//! sound. The fuzzer in `tests/fuzz` calls them with ever new bytes, the tests `fuzz::` with some.
//!
//! What the readers promise is the same everywhere: no panic, no more memory than the input justifies, and no text that a terminal
//! would obey.

mod addresses;
mod codec;
mod handshake;
mod journal;
mod manifests;
mod models;
mod settings;
mod tickets;

use std::path::{Path, PathBuf};

use murmur_protocol::text::is_unprintable;
use tempfile::TempDir;

/// One kind of input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The folder of its kept inputs in `tests/fuzz/corpus`.
    pub name: &'static str,
    /// Reads an input, and says whether it was one.
    pub read: fn(&[u8]) -> bool,
    /// Sound inputs, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    Target { name: "addresses", read: addresses::read, seeds: addresses::seeds },
    Target { name: "codec", read: codec::read, seeds: codec::seeds },
    Target { name: "handshake", read: handshake::read, seeds: handshake::seeds },
    Target { name: "journal", read: journal::read, seeds: journal::seeds },
    Target { name: "manifests", read: manifests::read, seeds: manifests::seeds },
    Target { name: "models", read: models::read, seeds: models::seeds },
    Target { name: "settings", read: settings::read, seeds: settings::seeds },
    Target { name: "tickets", read: tickets::read, seeds: tickets::seeds },
];

fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).expect("a target")
}

/// Reads bytes as the target of this name does.
///
/// # Panics
/// When there is none, or what comes of the bytes is not sound.
pub fn read(name: &str, bytes: &[u8]) {
    (target(name).read)(bytes);
}

/// Where inputs are kept.
pub fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name)
}

/// Writes the sound inputs of the target of this name to its corpus, where the fuzzer begins.
///
/// # Panics
/// When there is no such target, or the disk is full.
pub fn write_seeds(name: &str) {
    std::fs::create_dir_all(corpus(name)).expect("a folder to write to");
    for (number, seed) in (target(name).seeds)().into_iter().enumerate() {
        std::fs::write(corpus(name).join(format!("seed-{number}")), seed).expect("written");
    }
}

thread_local! {
    /// Gone with its thread. In memory where the system has such a place, for a fuzzer writes thousands of files a second.
    static FOLDER: TempDir = {
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        made.expect("a folder to write to")
    };
}

/// Where this thread may write.
fn folder() -> PathBuf {
    FOLDER.with(|folder| folder.path().to_owned())
}

/// The texts of the project's files in this folder of `configs`.
fn configs(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(folder);
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    files.map(|file| std::fs::read(file.path()).expect("a file")).collect()
}

/// Panics where a text that is shown holds what a terminal obeys.
fn assert_harmless(text: &str) {
    assert!(!text.contains(is_unprintable), "{text:?} holds what a terminal obeys");
}

/// An input of two parts: two bytes tell how long the first is.
fn joined(first: &[u8], second: &[u8]) -> Vec<u8> {
    let length = u16::try_from(first.len()).expect("short").to_le_bytes();
    [&length[..], first, second].concat()
}

/// The parts of such an input, whatever it is.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk() else { return (bytes, &[]) };
    rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))))
}
