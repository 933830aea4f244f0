//! How this machine computes a step; the path of training is the same but for rounding.

use std::str::FromStr;

use candle_core::DType;
use murmur_protocol::RunManifest;
use murmur_protocol::manifest::ModelSpec;
use serde::{Deserialize, Serialize};

use crate::ops::Kernels;
use crate::ops::product::Rounding;

/// Tokens that the CPU computes at once unless told otherwise: enough for matrix products at nearly full speed, and half
/// of the memory that 2,048 take.
pub const TOKENS_AT_ONCE: usize = 1024;

/// In what transformers multiply matrices with weights; the CPU's other models always do in `f32`. Parameters, sums over rows,
/// the optimizer and all that is exchanged are `f32` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits, products summed in 32. On GPUs, on processors with AMX and on AMD's bf16, which has the exponent of `f32`; on
    /// others with AVX512-VNNI integers with a scale for each 256, which they multiply faster. `f32` where a CPU has neither.
    Bf16,
}

impl FromStr for Precision {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Precision, &'static str> {
        match text {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            _ => Err("f32 or bf16"),
        }
    }
}

impl Precision {
    /// Whether transformers on this machine's CPU multiply matrices so, not in `f32` whatever they are told.
    pub fn is_on_this_cpu(self) -> bool {
        self == Precision::F32 || self.rounding().is_some()
    }

    /// How the CPU rounds the factors of products.
    pub(crate) fn rounding(self) -> Option<Rounding> {
        match self {
            Precision::F32 => None,
            Precision::Bf16 => Rounding::of_this_machine(),
        }
    }

    /// The type of such values.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

/// How to compute, as this machine likes it: the path of training is the same but for rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainingOptions {
    /// Which operations; `None`: the fastest on each device.
    pub kernels: Option<Kernels>,
    /// Examples of a batch that are computed at once; the rest follow, and their gradients add up. Fewer need less
    /// memory. `None` chooses: on the CPU as many as [`TOKENS_AT_ONCE`] allows, elsewhere all.
    pub micro_batch: Option<usize>,
    /// Computes activations again in the backward instead of keeping them, where the model can, and all threads on one part
    /// of the batch instead of a half each: less memory, a third more arithmetic, the same path but for rounding.
    pub recompute: bool,
    /// In what matrices are multiplied.
    pub precision: Precision,
    /// Keeps the optimizer's moments of matrices, but for the embedding, in 8 bits instead of 32: 2 bytes a parameter instead of 8
    /// with AdamW. Where every device is a CPU with [`Kernels::Fused`], and no replica is shared with other members; else it has
    /// no effect, see [`TrainingOptions::keeps_8_bits`].
    pub moments_in_8_bits: bool,
    /// Begins with zeros, which take no time to draw: for a node that is about to load a peer's model or a saved state.
    pub weightless: bool,
}

/// Microbatches for each stage of a pipeline with GPUs, unless told otherwise: of the time, (S − 1) / (5S − 1) is a bubble, at
/// most a fifth.
const MICROBATCHES_PER_STAGE: usize = 4;

/// Tokens that a GPU computes at once where a model is offloaded, unless told otherwise: enough to keep it busy (a guess).
const OFFLOADED_AT_ONCE: usize = 4096;

impl TrainingOptions {
    /// For a pipeline of so many stages, where a batch passes in parts: on GPUs, which else take it at once, in a number that
    /// keeps most stages busy. The CPU takes [`TOKENS_AT_ONCE`] in any case.
    pub fn in_microbatches(self, manifest: &RunManifest, stages: usize, all_on_cpu: bool) -> TrainingOptions {
        let examples = manifest.optimizer.batch_sequences as usize;
        let chosen = (!all_on_cpu).then(|| (examples / (MICROBATCHES_PER_STAGE * stages)).max(1));
        TrainingOptions { micro_batch: self.micro_batch.or(chosen), ..self }
    }

    /// For a model that is offloaded: on a GPU whose memory is short as many examples at once as [`OFFLOADED_AT_ONCE`] allows, for more
    /// of them would move no fewer weights.
    pub fn offloaded(self, manifest: &RunManifest) -> TrainingOptions {
        let chosen = (OFFLOADED_AT_ONCE / manifest.model.context() as usize).max(1);
        TrainingOptions { micro_batch: self.micro_batch.or(Some(chosen)), ..self }
    }

    /// Whether moments are kept in 8 bits where all that a model lies on are CPUs, or not.
    pub fn keeps_8_bits(&self, manifest: &RunManifest, all_on_cpu: bool) -> bool {
        let is_fused = self.kernels.is_none_or(|kernels| kernels == Kernels::Fused);
        // Members of a synchronous run that averages gradients are to take the same steps, and have each other's moments.
        self.moments_in_8_bits
            && all_on_cpu
            && is_fused
            && !(manifest.synchronous.is_on() && manifest.synchronous.averages_gradients())
    }

    /// Examples of a batch of `spec` computed at once.
    pub(crate) fn examples_at_once(&self, spec: &ModelSpec, kernels: Kernels) -> usize {
        self.micro_batch.unwrap_or_else(|| match kernels {
            Kernels::Fused if spec.reads_text() => (TOKENS_AT_ONCE / spec.context() as usize).max(1),
            // An image needs little memory.
            _ => usize::MAX,
        })
    }
}
