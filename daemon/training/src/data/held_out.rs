//! Which images and rows are held out.
//!
//! Each is drawn by itself, from the run's seed and what names it: an example that is added moves no other one from one side
//! to the other, or a node that goes on with more data would be judged by what it has been trained on.

use murmur_protocol::RunManifest;
use murmur_protocol::random::{RngExt, stream};

use super::permutation::mixed;

/// A file has fewer examples than two to this power.
const EXAMPLE_BITS: u32 = 40;

/// What names an example by its place: which file, and which of its examples.
pub(super) fn mark_of_place(file: usize, example: usize) -> u64 {
    (file as u64) << EXAMPLE_BITS | example as u64
}

/// What names an example by words.
pub(super) fn mark_of_names(names: &[&str]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    let mut mark = [0; 8];
    mark.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(mark)
}

/// The draw, example by example.
pub(super) struct HeldOut {
    key: u64,
    /// Draws below it are held out.
    below: u64,
    training: Vec<usize>,
    /// The lowest draw of `training`.
    lowest: Option<(u64, usize)>,
    held_out: Vec<(u64, usize)>,
}

impl HeldOut {
    /// The run's draw for this purpose.
    pub(super) fn new(manifest: &RunManifest, purpose: &str) -> HeldOut {
        HeldOut {
            key: stream(manifest.run.seed, purpose, &[]).random(),
            below: (manifest.data.validation_fraction * 2_f64.powi(64)) as u64,
            training: Vec::new(),
            lowest: None,
            held_out: Vec::new(),
        }
    }

    /// The next example.
    pub(super) fn push(&mut self, mark: u64) {
        let draw = (mixed(self.key, mark), self.training.len() + self.held_out.len());
        if draw.0 < self.below {
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

    fn drawn(examples: usize, fraction: f64) -> (Vec<usize>, Vec<usize>) {
        let mut manifest = RunManifest::default();
        manifest.data.validation_fraction = fraction;
        let mut draw = HeldOut::new(&manifest, "test");
        (0..examples).for_each(|example| draw.push(mark_of_place(0, example)));
        draw.finish()
    }

    #[test]
    fn one_more_example_moves_no_other_and_both_sides_have_one() {
        let (mut training, mut held_out) = drawn(0, 0.2);
        assert_eq!((training.len(), held_out.len()), (0, 0));
        for examples in 1..400 {
            let (of_more, held_out_of_more) = drawn(examples, 0.2);
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
        let share = drawn(100_000, 0.2).1.len() as f64 / 100_000.0;
        assert!((share - 0.2).abs() < 0.005, "{share}");
        assert!((2..60).all(|examples| !drawn(examples, 0.5).0.is_empty()));
    }

    #[test]
    fn names_and_files_draw_apart() {
        assert_ne!(mark_of_names(&["ab", "c"]), mark_of_names(&["a", "bc"]));
        assert_ne!(mark_of_place(1, 0), mark_of_place(0, 1));
    }
}
