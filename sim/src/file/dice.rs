//! What a seed decides. Each key has a stream of its own, so a new key shifts no other's draws.

use std::time::Duration;

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{Fragments, Holding};

use super::Drawn;
use crate::scenario::HostIndex;

/// Draws, and notes what it has drawn.
pub(super) struct Dice {
    seed: u64,
    drawn: Vec<(String, String)>,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice { seed, drawn: Vec::new() }
    }

    /// One value for the whole run.
    pub(super) fn amount(&mut self, key: &str, drawn: Drawn<f64>) -> f64 {
        let value = between(&mut self.stream(key), drawn);
        self.note(key, drawn.from < drawn.to, format!("{value:.6}"));
        value
    }

    /// One whole number for the whole run.
    pub(super) fn count(&mut self, key: &str, drawn: Drawn<usize>) -> usize {
        let value = self.stream(key).random_range(drawn.from..=drawn.to);
        self.note(key, drawn.from < drawn.to, value.to_string());
        value
    }

    /// One of these for the whole run; there is at least one.
    pub(super) fn choice<T: Copy + ToString>(&mut self, key: &str, among: &[T]) -> T {
        let value = among[self.stream(key).random_range(0..among.len())];
        self.note(key, among.len() > 1, value.to_string());
        value
    }

    /// Once for each key, however often it is drawn: the value is the same.
    fn note(&mut self, key: &str, is_open: bool, value: String) {
        if is_open && self.drawn.iter().all(|(noted, _)| noted != key) {
            self.drawn.push((key.to_owned(), value));
        }
    }

    /// What was left open and is drawn now: key and value.
    pub(super) fn into_drawn(self) -> Vec<(String, String)> {
        self.drawn
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// For what each node draws for itself.
    pub(super) fn stream(&self, key: &str) -> Generator {
        stream(self.seed, "scenario file", &[key.as_bytes()])
    }
}

/// A value of a range.
pub(super) fn between(random: &mut Generator, drawn: Drawn<f64>) -> f64 {
    random.random_range(drawn.from..=drawn.to)
}

/// The same as a time.
pub(super) fn time_between(random: &mut Generator, drawn: Drawn<f64>) -> Duration {
    Duration::from_secs_f64(between(random, drawn))
}

/// The first node, which always is there, and others at random.
pub(super) fn some_addresses(
    random: &mut Generator,
    host: HostIndex,
    count: usize,
    addresses: usize,
) -> Vec<HostIndex> {
    let first = HostIndex::from(host == 0);
    let others: Vec<HostIndex> = (0..count).filter(|other| ![host, first].contains(other)).collect();
    let mut known = vec![first];
    known.extend(take(random, others, addresses.saturating_sub(1)));
    known
}

/// Some fragments, at least one.
pub(super) fn some_fragments(random: &mut Generator, fragments: &Fragments) -> Holding {
    let candidates: Vec<u16> = fragments.filled().collect();
    let one = candidates[random.random_range(0..candidates.len())];
    Holding::of(candidates.into_iter().filter(|fragment| *fragment == one || random.random_bool(0.5)))
}

/// So many are this share of `count`; a share above 0 is at least one.
pub(super) fn share_of(count: usize, share: f64) -> usize {
    let nearest = (count as f64 * share).round() as usize;
    nearest.max(usize::from(share > 0.0))
}

/// So many of the candidates, in random order.
pub(super) fn take(random: &mut Generator, mut candidates: Vec<HostIndex>, count: usize) -> Vec<HostIndex> {
    let count = count.min(candidates.len());
    (0..count).map(|_| candidates.swap_remove(random.random_range(0..candidates.len()))).collect()
}
