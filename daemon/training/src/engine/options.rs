//! How this machine computes a step; the path of training is the same but for rounding.

use candle_core::Device;

use crate::ops::Kernels;

/// Tokens that the CPU computes at once unless told otherwise: enough for matrix products at nearly full speed, and half
/// of the memory that 2,048 take.
pub const TOKENS_AT_ONCE: usize = 1024;

/// How to compute, as this machine likes it: the path of training is the same but for rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingOptions {
    /// Which operations.
    pub kernels: Kernels,
    /// Examples of a batch that are computed at once; the rest follow, and their gradients add up. Fewer need less
    /// memory. `None` chooses: on the CPU as many as [`TOKENS_AT_ONCE`] allows, elsewhere all.
    pub micro_batch: Option<usize>,
    /// Computes activations again in the backward instead of keeping them, where the model can: less memory, a third
    /// more arithmetic, the same bits.
    pub recompute: bool,
}

impl TrainingOptions {
    /// The fastest for `device`: activations kept, and [`TOKENS_AT_ONCE`] on the CPU.
    pub fn for_device(device: &Device) -> TrainingOptions {
        TrainingOptions { kernels: Kernels::for_device(device), micro_batch: None, recompute: false }
    }

    /// Examples computed at once, for windows of `context` tokens.
    pub(super) fn examples_at_once(&self, context: u32, device: &Device) -> usize {
        let fitting = if device.is_cpu() { (TOKENS_AT_ONCE / context as usize).max(1) } else { usize::MAX };
        self.micro_batch.unwrap_or(fitting)
    }
}
