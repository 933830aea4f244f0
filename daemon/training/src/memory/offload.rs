//! What a model takes that lies in the machine's memory while a GPU trains it.

use murmur_protocol::RunManifest;

use super::{MemoryEstimate, VALUE, stored_values};
use crate::engine::options::TrainingOptions;
use crate::gpu::{self, BUFFERS_UNDER_WAY, DeviceValues, passing_base_bytes, passing_values};
use crate::model::{self, transformer_of};
use crate::ops::Kernels;

/// Of both memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadEstimate {
    /// What the GPU holds, which does not grow with the number of layers.
    pub of_gpu: MemoryEstimate,
    /// What the machine holds.
    pub of_machine: MemoryEstimate,
}

impl OffloadEstimate {
    /// For a run whose model can be offloaded, see [`why_not_offloaded`](crate::why_not_offloaded).
    ///
    /// # Panics
    /// Where it is no transformer.
    pub fn of(manifest: &RunManifest, options: &TrainingOptions) -> OffloadEstimate {
        let spec = transformer_of(manifest);
        let options = &options.offloaded(manifest);
        let batch = manifest.optimizer.batch_sequences as usize;
        let at_once = options.examples_at_once(&manifest.model, Kernels::Cuda).min(batch);
        let resident = MemoryEstimate::of(manifest, options, Kernels::Cuda, 1);
        let (of_gpu, under_way, of_machine) = if manifest.lora.is_on() {
            of_adapters(manifest, options, at_once, &resident)
        } else {
            of_all(manifest, options, (batch, at_once), &resident)
        };
        // The stream that each stage but the first reads, and one gradient of a stream.
        let streams = batch * spec.context as usize * spec.width as usize * (spec.layers as usize + 2);
        let of_machine = MemoryEstimate {
            activations: bytes(streams),
            copies: resident.copies + under_way,
            process: resident.process,
            ..of_machine
        };
        OffloadEstimate { of_gpu, of_machine }
    }
}

fn bytes(values: usize) -> u64 {
    VALUE * values as u64
}

/// Of a model whose parameters are all trained: what the GPU holds, bytes in the machine's memory that travel, and what it keeps.
fn of_all(
    manifest: &RunManifest,
    options: &TrainingOptions,
    (batch, at_once): (usize, usize),
    resident: &MemoryEstimate,
) -> (MemoryEstimate, u64, MemoryEstimate) {
    let (spec, layout) = (transformer_of(manifest), model::layout(&manifest.model));
    let DeviceValues { weights, gradients, transfer, activations } =
        DeviceValues::of(spec, &layout, &manifest.optimizer, (batch, at_once, options.precision));
    let of_gpu = MemoryEstimate {
        parameters: bytes(weights),
        gradient: bytes(gradients),
        activations: bytes(activations),
        ..MemoryEstimate::default()
    };
    // The last stage has a gradient of a tied table as well.
    let copied = if spec.tied_head { layout.tensors()[0].len() } else { 0 };
    let of_machine = MemoryEstimate {
        parameters: bytes(layout.parameters()),
        gradient: bytes(layout.parameters() + copied),
        moments: resident.moments,
        ..MemoryEstimate::default()
    };
    // Page-locked, and what has arrived and takes the place of what was there.
    let under_way = (BUFFERS_UNDER_WAY as u64 + 1) * bytes(transfer);
    (of_gpu, under_way, of_machine)
}

/// The same of a frozen base with adapters, which the GPU holds.
fn of_adapters(
    manifest: &RunManifest,
    options: &TrainingOptions,
    at_once: usize,
    resident: &MemoryEstimate,
) -> (MemoryEstimate, u64, MemoryEstimate) {
    let (spec, layout, lora) = (transformer_of(manifest), model::layout(&manifest.model), &manifest.lora);
    let (of_base, largest) = passing_base_bytes(spec, options.precision.into(), lora);
    let held = gpu::frozen_bytes(&layout, options.precision.into(), lora).next_multiple_of(4) as u64;
    let activations = passing_values(spec, (at_once, options.precision), lora.rank as usize);
    let of_gpu = MemoryEstimate {
        parameters: resident.parameters - held + of_base as u64,
        activations: bytes(activations),
        copies: 0,
        process: 0,
        ..*resident
    };
    let base = VALUE * stored_values(&layout, lora.base_bits);
    // Page-locked: one stage's weights at a time, of an end or a block, and streams, two at once.
    let stream = bytes(at_once * spec.context as usize * spec.width as usize);
    let under_way = 2 * largest as u64 + BUFFERS_UNDER_WAY as u64 * 2 * stream;
    (of_gpu, under_way, MemoryEstimate { parameters: base, ..MemoryEstimate::default() })
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{LoraSpec, TransformerModel};

    use super::*;
    use crate::engine::Precision;

    /// A base of 8 billion weights in 8 bits.
    #[test]
    fn beside_adapters_the_machine_holds_the_base_in_its_bits_and_the_gpu_two_layers() {
        let model = TransformerModel {
            layers: 32,
            width: 4096,
            heads: 32,
            key_value_heads: 8,
            feed_forward: 14_336,
            context: 2048,
            vocabulary: 128_256,
            ..TransformerModel::default()
        };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.lora = LoraSpec { rank: 16, base_bits: 8, ..LoraSpec::default() };
        let options = TrainingOptions { precision: Precision::Bf16, ..TrainingOptions::default() };
        let OffloadEstimate { of_gpu, of_machine } = OffloadEstimate::of(&manifest, &options);
        let resident = MemoryEstimate::of(&manifest, &options, Kernels::Cuda, 1);
        let base = of_machine.parameters as f64;
        assert!((8.0e9..8.6e9).contains(&base), "{base}");
        assert!(of_machine.copies < 3 << 30, "{of_machine}");
        assert!(resident.on_device() - of_gpu.on_device() > 6_500_000_000, "{of_gpu} {resident}");
        assert_eq!((of_gpu.moments, of_gpu.gradient), (resident.moments, resident.gradient));
    }

    /// 1.3 billion parameters take 34 GB of a GPU that holds them all.
    #[test]
    fn the_gpu_holds_two_layers_and_the_machine_all() {
        let of_layers = |layers| {
            let model = TransformerModel {
                layers,
                width: 2048,
                heads: 16,
                feed_forward: 5504,
                context: 2048,
                vocabulary: 32_000,
                ..TransformerModel::default()
            };
            let manifest = RunManifest { model: model.into(), ..RunManifest::default() };
            let options = TrainingOptions::default();
            let resident = MemoryEstimate::of(&manifest, &options, Kernels::Cuda, 1);
            (OffloadEstimate::of(&manifest, &options), resident)
        };
        let ((offload, resident), (deeper, _)) = (of_layers(24), of_layers(48));
        assert_eq!(offload.of_gpu, deeper.of_gpu);
        assert!(8 * offload.of_gpu.on_device() < resident.on_device(), "{} {resident}", offload.of_gpu);
        let parameters = offload.of_machine.parameters;
        assert!((5.0e9..6.0e9).contains(&(parameters as f64)), "{parameters}");
        assert_eq!(offload.of_machine.moments, 2 * parameters);
        assert!(deeper.of_machine.on_device() > 19 * offload.of_machine.on_device() / 10);
    }
}
