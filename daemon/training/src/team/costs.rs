//! What the parts of a model cost on a machine of a team: for the cut, before anything is loaded.

use std::ops::Range;

use murmur_protocol::RunManifest;
use murmur_protocol::numerics::StreamCodec;
use murmur_protocol::team::cut::alone;
use murmur_protocol::team::{LayerCosts, ModelCosts, Place, Wire};

use super::part::PartLengths;
use crate::engine::TrainingOptions;
use crate::measure::operations_of_stage;
use crate::memory::MemoryEstimate;
use crate::model::StageSpec;
use crate::ops::Kernels;

/// Bytes of a value.
const VALUE: usize = 4;

/// The share of a full step's operations that training adapters takes: no gradient of the base's weights (4 of 6).
const OF_ADAPTERS: f64 = 2.0 / 3.0;

/// What a part costs, by its layers.
struct Costing<'a> {
    manifest: &'a RunManifest,
    options: &'a TrainingOptions,
    threads: usize,
}

impl Costing<'_> {
    fn memory(&self, part: &StageSpec, microbatches: usize) -> MemoryEstimate {
        MemoryEstimate::of_stage(self.manifest, self.options, Kernels::Fused, self.threads, part, microbatches)
    }

    /// Of forward and backward of so many tokens.
    fn operations(&self, part: &StageSpec, tokens: f64) -> f64 {
        let share = if self.manifest.lora.is_on() { OF_ADAPTERS } else { 1.0 };
        share * tokens * operations_of_stage(&self.manifest.model, part, self.options.recompute)
    }

    /// What travels where a part goes to another machine.
    fn moved(&self, part: &StageSpec) -> u64 {
        let lengths = PartLengths::of(self.manifest, part, self.options.moments_in_8_bits);
        let state = VALUE * lengths.trained + lengths.moments.bytes();
        let base = match (self.manifest.lora.is_on(), self.manifest.lora.base_bits) {
            (false, _) => 0,
            (true, 8) => lengths.weights + lengths.weights / 32,
            (true, bits) => lengths.weights * bits as usize / 8,
        };
        (state + base) as u64
    }

    /// All that stays whatever is under way: parameters, base, gradient, moments.
    fn held_always(&self, part: &StageSpec) -> u64 {
        let MemoryEstimate { parameters, gradient, moments, .. } = self.memory(part, 1);
        parameters + gradient + moments
    }
}

fn layers(layers: Range<u32>) -> StageSpec {
    StageSpec { layers, embeds: false, predicts: false }
}

/// Whether a machine could hold the whole of the run's model, as a captain without helpers.
pub fn fits_here(
    manifest: &RunManifest,
    options: &TrainingOptions,
    (wire, threads): (Wire, usize),
    place: &Place,
) -> bool {
    let rows = rows(manifest, options);
    alone(&costs(manifest, options, threads, (wire, rows)), place, 1).is_some()
}

/// Bytes that a captain needs at least, for embedding and head, and about as many for each layer that it keeps.
pub fn captain_needs(manifest: &RunManifest, options: &TrainingOptions, (wire, threads): (Wire, usize)) -> (u64, u64) {
    let ModelCosts { layer, embedding, head, stage_bytes, .. } =
        costs(manifest, options, threads, (wire, rows(manifest, options)));
    (stage_bytes + embedding.bytes + head.bytes + head.held_bytes, layer.bytes + layer.held_bytes)
}

/// Rows of a microbatch, at most.
pub(super) fn rows(manifest: &RunManifest, options: &TrainingOptions) -> usize {
    let at_once = options.examples_at_once(&manifest.model, Kernels::Fused);
    at_once.min(manifest.optimizer.batch_sequences as usize).max(1) * manifest.model.context as usize
}

/// The costs of the run's model, with microbatches of so many rows.
pub(super) fn costs(
    manifest: &RunManifest,
    options: &TrainingOptions,
    threads: usize,
    (wire, rows): (Wire, usize),
) -> ModelCosts {
    let (costing, spec) = (Costing { manifest, options, threads }, &manifest.model);
    let tokens = rows as f64;
    let (one, ends) = (layers(0..1), layers(0..0));
    let activations = |part: &StageSpec, held| costing.memory(part, held).activations;
    // Streams and what blocks keep grow with layers and microbatches, scratch with neither.
    let held = activations(&one, 2).saturating_sub(activations(&one, 1));
    let two = if spec.layers > 1 { layers(0..2) } else { layers(0..1) };
    let by_layer = activations(&two, 1).saturating_sub(activations(&one, 1)).saturating_sub(held);
    let layer = LayerCosts {
        operations: costing.operations(&one, tokens),
        bytes: costing.held_always(&one) + by_layer,
        held_bytes: held,
        moved_bytes: costing.moved(&one),
    };
    let of_end = |part: StageSpec| LayerCosts {
        operations: costing.operations(&part, tokens),
        bytes: costing.held_always(&part) + activations(&part, 1).saturating_sub(activations(&ends, 1)),
        held_bytes: 0,
        moved_bytes: costing.moved(&part),
    };
    let codec = StreamCodec::new(wire, spec.width as usize);
    ModelCosts {
        layers: spec.layers,
        layer,
        embedding: of_end(StageSpec { embeds: true, ..layers(0..0) }),
        head: of_end(StageSpec { predicts: true, ..layers(spec.layers..spec.layers) }),
        stream_bytes: codec.bytes(rows) as u64,
        stage_bytes: activations(&one, 1).saturating_sub(held + by_layer),
        batch_tokens: u64::from(manifest.optimizer.batch_sequences) * u64::from(spec.context),
    }
}
