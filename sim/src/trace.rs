//! A fingerprint of a run: BLAKE3 over every event and effect, and, on request, the last of them in words.
//!
//! Two runs of one scenario and seed have equal fingerprints, or something in the core or here depends on what it
//! must not depend on. Events and effects are hashed in a short binary form, see [`canonical`]; putting them into
//! words costs ten times as much and is done only where somebody wants to read them.

mod canonical;
mod kinds;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;

use murmur_protocol::{Effect, Event, Time};

use crate::scenario::HostIndex;

/// Bytes gathered before they are hashed: BLAKE3 is several times faster on long inputs.
const BUFFER_BYTES: usize = 16 * 1024;

/// The running hash and the last lines.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
    lines: VecDeque<String>,
    lines_max: usize,
    entries: u64,
    /// Which kinds of events there were.
    kinds: BTreeSet<&'static str>,
    /// Entries are counted and not hashed.
    pub(crate) only_counts: bool,
}

impl Trace {
    /// From now on keeps the last `count` entries in words.
    pub(crate) fn keep_lines(&mut self, count: usize) {
        self.lines_max = count;
    }

    /// Takes in what a node is told (`<`).
    pub(crate) fn event(&mut self, now: Time, host: HostIndex, event: &Event) {
        if self.only_counts {
            self.entries += 1;
            return;
        }
        self.kinds.insert(kinds::kind(event));
        self.head(now, host);
        canonical::event(event, &mut self.buffer);
        self.end(now, host, '<', event);
    }

    /// Takes in what a node orders (`>`).
    pub(crate) fn effect(&mut self, now: Time, host: HostIndex, effect: &Effect) {
        if self.only_counts {
            self.entries += 1;
            return;
        }
        self.head(now, host);
        canonical::effect(effect, &mut self.buffer);
        self.end(now, host, '>', effect);
    }

    pub(crate) fn fingerprint(&self) -> ([u8; 32], u64) {
        let digest = self.hasher.clone().update(&self.buffer).finalize();
        (*digest.as_bytes(), self.entries)
    }

    pub(crate) fn kinds(&self) -> &BTreeSet<&'static str> {
        &self.kinds
    }

    pub(crate) fn last_lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    fn head(&mut self, now: Time, host: HostIndex) {
        self.buffer.extend_from_slice(&(now.since_start().as_nanos() as u64).to_le_bytes());
        self.buffer.extend_from_slice(&(host as u32).to_le_bytes());
    }

    fn end(&mut self, now: Time, host: HostIndex, direction: char, what: &impl Debug) {
        self.entries += 1;
        if self.buffer.len() >= BUFFER_BYTES {
            self.hasher.update(&self.buffer);
            self.buffer.clear();
        }
        if self.lines_max > 0 {
            if self.lines.len() >= self.lines_max {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{now:?} {host} {direction} {what:?}\n"));
        }
    }
}
