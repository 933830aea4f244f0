//! How far a node's own training has moved its model between two exchanges, without what exchanges added.
//!
//! The core compares it with the distance of two models (consensus control, Kong et al., ICML 2021). A sample of blocks
//! stands for all, so that no second copy of a large model is kept.

use murmur_protocol::bulk::BLOCK;

/// Blocks looked at, at most: 16,384 parameters estimate a norm to within a few percent.
const BLOCKS_MAX: usize = 64;

/// The sampled blocks as they would be had only exchanges moved them.
#[derive(Clone, Debug)]
pub struct LocalProgress {
    /// Every so many blocks one is in the sample.
    stride: usize,
    reference: Vec<f32>,
}

impl LocalProgress {
    /// Begins at a model.
    pub fn new(values: &[f32]) -> LocalProgress {
        let stride = values.len().div_ceil(BLOCK).div_ceil(BLOCKS_MAX).max(1);
        LocalProgress { stride, reference: sampled(values, stride).copied().collect() }
    }

    /// The Euclidean norm of the movement since the last measurement, estimated for the whole model.
    pub fn measure(&mut self, values: &[f32]) -> f64 {
        let mut squares = 0.0;
        for (reference, value) in self.reference.iter_mut().zip(sampled(values, self.stride)) {
            squares += f64::from(*value - *reference).powi(2);
            *reference = *value;
        }
        (squares * values.len() as f64 / self.reference.len().max(1) as f64).sqrt()
    }

    /// Takes values that were added to the parameters from `start` on for another's doing.
    pub fn leave_out_added(&mut self, start: usize, added: &[f32]) {
        for (index, block) in self.reference.chunks_mut(BLOCK).enumerate() {
            let first = index * self.stride * BLOCK;
            for (offset, reference) in block.iter_mut().enumerate() {
                let place = (first + offset).checked_sub(start);
                *reference += place.and_then(|place| added.get(place)).copied().unwrap_or(0.0);
            }
        }
    }

    /// The values of the sampled blocks, 16,384 at most: taken before somebody else changes the model, they are what
    /// [`LocalProgress::leave_out`] compares with.
    pub fn sample(&self, values: &[f32]) -> Vec<f32> {
        sampled(values, self.stride).copied().collect()
    }

    /// Takes what lies between the sample `before` and the whole model `after` for another's doing.
    pub fn leave_out(&mut self, before: &[f32], after: &[f32]) {
        let pairs = before.iter().zip(sampled(after, self.stride));
        for (reference, (before, after)) in self.reference.iter_mut().zip(pairs) {
            *reference += after - before;
        }
    }
}

fn sampled(values: &[f32], stride: usize) -> impl Iterator<Item = &f32> {
    values.chunks(BLOCK).step_by(stride).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_movement_counts_and_the_sample_stands_for_all() {
        let first = vec![1.0; 1_000_000];
        let mut progress = LocalProgress::new(&first);
        let trained: Vec<f32> = first.iter().map(|value| value + 0.5).collect();
        let corrected: Vec<f32> = trained.iter().map(|value| value - 3.0).collect();
        let before = progress.sample(&trained);
        assert!(before.len() <= BLOCKS_MAX * BLOCK, "{} values of a million", before.len());
        progress.leave_out(&before, &corrected);
        let measured = progress.measure(&corrected);
        assert!((measured - 500.0).abs() < 1.0, "{measured}: a million parameters moved by a half each");
        let (start, added) = (300_007, vec![7.0; 500_000]);
        let values = |index| corrected[index] + if (start..start + 500_000).contains(&index) { 7.0 } else { 0.0 };
        let twice: Vec<f32> = (0..1_000_000).map(values).collect();
        progress.leave_out_added(start, &added);
        assert_eq!(progress.measure(&twice), 0.0);
        let corrected = twice;
        assert_eq!(progress.measure(&corrected), 0.0);
    }
}
