//! The differentiable operations of the model, one per file.
//!
//! Why our own: candle as it comes records dozens of small operations a layer, each with a temporary forward and zeros
//! plus an addition backward: half to two thirds of the time on a CPU (`benches/step.rs`). Here each operation is one graph node with
//! a hand-written backward. On other devices, and as the reference in the tests, the same operation is composed of
//! candle's differentiable ones. See [`Kernels`].
//!
//! Every sum has a fixed order: equal inputs give equal bits for any number of threads.

pub(crate) mod attention;
pub(crate) mod convolution;
pub(crate) mod cross_entropy;
pub(crate) mod dense;
pub(crate) mod embedding;
pub(crate) mod exponential;
#[cfg(test)]
pub(crate) mod gradient_check;
pub(crate) mod linear;
pub(crate) mod product;
pub(crate) mod rms_norm;
pub(crate) mod rotary;
pub(crate) mod storage;
pub(crate) mod swiglu;
pub(crate) mod vector;

use candle_core::Device;

/// How the operations are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// One graph node per operation with a hand-written backward: `f32` on the CPU only.
    Fused,
    /// Candle's own differentiable operations: any device.
    Composed,
}

impl Kernels {
    /// The faster choice that works on `device`.
    pub fn for_device(device: &Device) -> Kernels {
        if device.is_cpu() { Kernels::Fused } else { Kernels::Composed }
    }
}

/// Rows that one task of a row-wise operation handles: enough work to outweigh a task's cost, and a constant, because
/// sums are split along it.
pub(crate) const TASK_ROWS: usize = 64;
