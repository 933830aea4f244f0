//! The operations of the models, one per file: forward and hand-written backward over plain slices, and the same composed
//! of candle's differentiable operations, for other devices and as the oracle of the tests.
//!
//! Why our own: candle as it comes records dozens of small operations a layer, each with a temporary forward and zeros
//! plus an addition backward. Here a model calls one function after the other over buffers that it keeps, and
//! gradients of weights go straight to their place in the flat gradient. Every function uses all of rayon's threads.
//!
//! Every sum has a fixed order: equal inputs give equal bits for any number of threads.

pub(crate) mod attention;
pub(crate) mod base_weights;
pub(crate) mod bias;
pub(crate) mod convolution;
pub(crate) mod cross_entropy;
pub(crate) mod dense;
pub(crate) mod embedding;
pub(crate) mod exponential;
#[cfg(test)]
pub(crate) mod gradient_check;
pub(crate) mod head_norm;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod product;
pub(crate) mod rms_norm;
pub(crate) mod rotary;
pub(crate) mod swiglu;
pub(crate) mod vector;

use candle_core::Device;
use murmur_protocol::RunManifest;

use crate::gpu;

/// How a model is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Over flat vectors with a hand-written backward: `f32` on the CPU only.
    Fused,
    /// The same in the memory of an NVIDIA GPU: transformers, with adapters or without.
    Cuda,
    /// Of candle's own differentiable operations: any device.
    Composed,
}

impl Kernels {
    /// The fastest choice that works on `device` for this run.
    pub fn choose(device: &Device, manifest: &RunManifest) -> Kernels {
        match device {
            Device::Cpu => Kernels::Fused,
            _ if Kernels::are_cudas(manifest) && gpu::accelerator(device).is_ok() => Kernels::Cuda,
            _ => Kernels::Composed,
        }
    }

    /// Whether [`Kernels::Cuda`] train such a run.
    pub(crate) fn are_cudas(manifest: &RunManifest) -> bool {
        manifest.model.transformer().is_some()
    }
}

/// Rows that one task of a row-wise operation handles: enough work to outweigh a task's cost, and a constant, because
/// sums are split along it.
pub(crate) const TASK_ROWS: usize = 64;
