//! What a model takes that lies in the machine's memory while a GPU trains it.

use murmur_protocol::RunManifest;

use super::{MemoryEstimate, VALUE};
use crate::engine::options::TrainingOptions;
use crate::gpu::{BUFFERS_UNDER_WAY, DeviceValues};
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
        let (spec, layout) = (transformer_of(manifest), model::layout(&manifest.model));
        let options = &options.offloaded(manifest);
        let batch = manifest.optimizer.batch_sequences as usize;
        let at_once = options.examples_at_once(&manifest.model, Kernels::Cuda).min(batch);
        let DeviceValues { weights, gradients, activations } =
            DeviceValues::of(spec, &layout, &manifest.optimizer, (at_once, options.precision));
        let bytes = |values: usize| VALUE * values as u64;
        let of_gpu = MemoryEstimate {
            parameters: bytes(weights),
            gradient: bytes(gradients),
            activations: bytes(activations),
            ..MemoryEstimate::default()
        };
        // The stream that each stage but the first reads, and one gradient of a stream.
        let streams = batch * spec.context as usize * spec.width as usize * (spec.layers as usize + 2);
        // Page-locked, and what has arrived and takes the place of what was there.
        let under_way = (BUFFERS_UNDER_WAY + 1) * gradients / 2;
        let resident = MemoryEstimate::of(manifest, options, Kernels::Cuda, 1);
        let of_machine = MemoryEstimate {
            parameters: bytes(layout.parameters()),
            gradient: bytes(layout.parameters()),
            moments: resident.moments,
            activations: bytes(streams),
            copies: resident.copies + bytes(under_way),
            process: resident.process,
        };
        OffloadEstimate { of_gpu, of_machine }
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;

    use super::*;

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
