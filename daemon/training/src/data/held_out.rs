//! Which images, rows and texts are held out.
//!
//! Each is drawn by itself, from the run's seed and what it holds or is named: an example or a file that is added, and files in
//! another order, move no other one from one side to the other, or a node that goes on with more data would be judged by what
//! it has been trained on.

use std::collections::HashMap;

use murmur_protocol::RunManifest;
use murmur_protocol::random::{RngExt, stream};

use super::permutation::mixed;

/// What marks an example by its parts: bytes that it holds, or words that name it.
pub(super) fn mark_of(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut mark = [0; 8];
    mark.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(mark)
}

/// A run's draw for one purpose.
pub(super) struct Draw {
    key: u64,
    /// Draws below it are held out.
    below: u64,
}

impl Draw {
    pub(super) fn new(manifest: &RunManifest, purpose: &str) -> Draw {
        Draw {
            key: stream(manifest.run.seed, purpose, &[]).random(),
            below: (manifest.data.validation_fraction * 2_f64.powi(64)) as u64,
        }
    }

    pub(super) fn holds_out(&self, mark: u64) -> bool {
        self.of(mark) < self.below
    }

    fn of(&self, mark: u64) -> u64 {
        mixed(self.key, mark)
    }
}

/// The examples of a set, drawn one by one.
pub(super) struct HeldOut {
    draw: Draw,
    /// How often each mark has come: of examples that are alike each is drawn by itself, or a table with few different rows would
    /// have whole kinds of them on one side.
    seen: HashMap<u64, u64>,
    training: Vec<usize>,
    /// The lowest draw of `training`.
    lowest: Option<(u64, usize)>,
    held_out: Vec<(u64, usize)>,
}

impl HeldOut {
    /// The run's draw for this purpose.
    pub(super) fn new(manifest: &RunManifest, purpose: &str) -> HeldOut {
        HeldOut {
            draw: Draw::new(manifest, purpose),
            seen: HashMap::new(),
            training: Vec::new(),
            lowest: None,
            held_out: Vec::new(),
        }
    }

    /// The next example.
    pub(super) fn push(&mut self, mark: u64) {
        let number = self.training.len() + self.held_out.len();
        let seen = self.seen.entry(mark).or_default();
        let mark = mark.wrapping_add(*seen);
        *seen += 1;
        let draw = (self.draw.of(mark), number);
        if self.draw.holds_out(mark) {
            self.held_out.push(draw);
        } else {
            self.training.push(draw.1);
            self.lowest = Some(self.lowest.map_or(draw, |lowest| lowest.min(draw)));
        }
    }

    /// (numbers of the examples to train on in order, numbers of those held out in the order of their draws): of two or more
    /// at least one each.
    pub(super) fn finish(mut self) -> (Vec<usize>, Vec<usize>) {
        self.held_out.sort_unstable();
        match self.lowest {
            Some((_, number)) if self.held_out.is_empty() && self.training.len() > 1 => {
                self.training.retain(|other| *other != number);
                self.held_out.push((0, number));
            }
            // A single one is trained on.
            None => self.training.extend(self.held_out.pop().map(|(_, number)| number)),
            Some(_) => {}
        }
        (self.training, self.held_out.into_iter().map(|(_, number)| number).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(fraction: f64) -> RunManifest {
        let mut manifest = RunManifest::default();
        manifest.data.validation_fraction = fraction;
        manifest
    }

    /// Examples with these contents.
    fn drawn(contents: impl Iterator<Item = usize>, fraction: f64) -> (Vec<usize>, Vec<usize>) {
        let mut draw = HeldOut::new(&manifest(fraction), "test");
        contents.for_each(|content| draw.push(mark_of(&[&content.to_le_bytes()])));
        draw.finish()
    }

    #[test]
    fn one_more_example_moves_no_other_and_both_sides_have_one() {
        let (mut training, mut held_out) = drawn(0..0, 0.2);
        assert_eq!((training.len(), held_out.len()), (0, 0));
        for examples in 1..400 {
            let (of_more, held_out_of_more) = drawn(0..examples, 0.2);
            assert_eq!(of_more.len() + held_out_of_more.len(), examples);
            assert!(examples < 2 || (!of_more.is_empty() && !held_out_of_more.is_empty()), "{examples}");
            assert!(of_more.is_sorted());
            // Of a few examples the one that has to be held out may be another.
            if examples > 30 {
                assert!(training.iter().all(|number| of_more.contains(number)), "{examples}");
                assert!(held_out.iter().all(|number| held_out_of_more.contains(number)), "{examples}");
            }
            (training, held_out) = (of_more, held_out_of_more);
        }
        let share = drawn(0..100_000, 0.2).1.len() as f64 / 100_000.0;
        assert!((share - 0.2).abs() < 0.005, "{share}");
        assert!((2..60).all(|examples| !drawn(0..examples, 0.5).0.is_empty()));
    }

    #[test]
    fn the_order_of_the_examples_moves_none_and_those_that_are_alike_are_drawn_apart() {
        let mut contents: Vec<usize> = drawn(0..400, 0.2).1;
        let mut reversed: Vec<usize> = drawn((0..400).rev(), 0.2).1.into_iter().map(|number| 399 - number).collect();
        contents.sort_unstable();
        reversed.sort_unstable();
        assert_eq!(contents, reversed);
        let share = drawn(std::iter::repeat_n(7, 10_000), 0.2).1.len() as f64 / 10_000.0;
        assert!((share - 0.2).abs() < 0.02, "{share}");
    }

    #[test]
    fn parts_mark_apart() {
        assert_ne!(mark_of(&[b"ab", b"c"]), mark_of(&[b"a", b"bc"]));
    }
}
