//! What of a replica rests while a gradient is computed, and who reads it meanwhile.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::optimizer::{Moments, Optimizer};

/// What rests while a gradient is computed: of a model, or of a stage of it.
#[derive(Clone)]
pub(crate) struct Resting<'a> {
    /// θ.
    pub(crate) parameters: &'a [f32],
    pub(crate) moments: &'a Moments,
    pub(crate) optimizer: &'a Optimizer,
    /// Which of the optimizer's tensors are meant: all, but for a part whose ends have another's layers in between.
    pub(crate) tensors: Range<usize>,
}

/// Runs both at once; the one beside is told when the other has ended, whatever way.
pub(crate) fn beside<T>(work: impl FnOnce() -> T, beside: impl FnOnce(&AtomicBool) + Send) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| beside(&is_over));
        let _over = Over(&is_over);
        work()
    })
}
