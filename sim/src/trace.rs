//! A fingerprint of a run: BLAKE3 over every event and effect, and the last of them in words.
//!
//! Two runs of one scenario and seed have equal fingerprints, or something in the core or here depends on what it
//! must not depend on. Bulk shows itself as length and digest, so models are covered too.

use std::collections::VecDeque;
use std::fmt::Debug;

use murmur_protocol::Time;

use crate::scenario::HostIndex;

/// Lines kept for reading after a failure: a few exchanges of a small swarm.
const LINES_MAX: usize = 400;

/// The running hash and the last lines.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hasher: blake3::Hasher,
    lines: VecDeque<String>,
    pub(crate) entries: u64,
}

impl Trace {
    /// Takes in one event (`<`) or effect (`>`).
    pub(crate) fn write(&mut self, now: Time, host: HostIndex, direction: char, what: &impl Debug) {
        let line = format!("{now:?} {host} {direction} {what:?}\n");
        self.hasher.update(line.as_bytes());
        self.entries += 1;
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    pub(crate) fn last_lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
