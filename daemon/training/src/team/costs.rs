//! What the parts of a model cost on a machine of a team: for the cut, before anything is loaded.

use std::ops::Range;

use murmur_protocol::RunManifest;
use murmur_protocol::numerics::StreamCodec;
use murmur_protocol::team::{LayerCosts, ModelCosts, Wire};

use super::membership::borders;
use super::part::PartLengths;
use crate::engine::TrainingOptions;
use crate::measure::operations_of_stage;
use crate::memory::{MemoryEstimate, Saved, Table};
use crate::model::{StageSpec, transformer_of};
use crate::ops::Kernels;
use crate::replica::InParts;

/// Bytes of a value.
const VALUE: usize = 4;

/// The share of a full step's operations that training adapters takes: no gradient of the base's weights (4 of 6).
const OF_ADAPTERS: f64 = 2.0 / 3.0;

/// What a part costs, by its layers.
struct Costing<'a> {
    manifest: &'a RunManifest,
    options: &'a TrainingOptions,
    threads: usize,
    /// Of the captain. A helper is reckoned with as a CPU, unless the captain is none: then as the one that takes more.
    kernels: Kernels,
}

impl Costing<'_> {
    fn memory_with(&self, kernels: Kernels, part: &StageSpec, microbatches: usize) -> MemoryEstimate {
        let of_stage = MemoryEstimate::of_stage(
            self.manifest,
            self.options,
            (kernels, self.threads),
            part,
            microbatches,
            (Table::Shared, Saved::Whole),
        );
        let on_their_way = match kernels {
            // A GPU copies and corrects beside its steps where the model is not cut over machines.
            Kernels::Cuda => 2 * VALUE * PartLengths::of(self.manifest, part, false).trained,
            Kernels::Fused | Kernels::Composed => 0,
        };
        MemoryEstimate { parameters: of_stage.parameters - on_their_way as u64, ..of_stage }
    }

    fn memory(&self, part: &StageSpec, microbatches: usize) -> MemoryEstimate {
        let own = self.memory_with(self.kernels, part, microbatches);
        if self.kernels == Kernels::Fused || part.embeds || part.predicts {
            return own;
        }
        let on_cpu = self.memory_with(Kernels::Fused, part, microbatches);
        MemoryEstimate {
            parameters: own.parameters.max(on_cpu.parameters),
            gradient: own.gradient.max(on_cpu.gradient),
            moments: own.moments.max(on_cpu.moments),
            ..own
        }
    }

    /// Of forward and backward of so many tokens.
    fn operations(&self, part: &StageSpec, tokens: f64) -> f64 {
        let share = if self.manifest.lora.is_on() { OF_ADAPTERS } else { 1.0 };
        share * tokens * operations_of_stage(transformer_of(self.manifest), part, self.options.recompute)
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

    /// Bytes of what is trained of a part: all of its state, and the parameters alone.
    fn state(&self, part: &StageSpec) -> (u64, u64) {
        let lengths = PartLengths::of(self.manifest, part, self.options.moments_in_8_bits);
        let parameters = VALUE * lengths.trained;
        ((parameters + lengths.moments.bytes()) as u64, parameters as u64)
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

/// Bytes that a captain needs at least, for embedding and head and for what it keeps of all layers where others have them, and about as
/// many more for each layer that it has itself.
pub fn captain_needs(
    manifest: &RunManifest,
    options: &TrainingOptions,
    (wire, threads, kernels): (Wire, usize, Kernels),
) -> (u64, u64) {
    let ModelCosts { layers, layer, embedding, head, stage_bytes, .. } =
        costs(manifest, options, threads, wire, kernels).0;
    let of_lent = u64::from(layers + 1) * layer.kept_bytes;
    let least = stage_bytes + embedding.bytes + head.bytes + head.held_bytes + of_lent;
    (least, (layer.bytes + layer.held_bytes).saturating_sub(layer.kept_bytes))
}

/// Rows of a microbatch, at most.
pub(super) fn rows(manifest: &RunManifest, options: &TrainingOptions) -> usize {
    let at_once = options.examples_at_once(&manifest.model, Kernels::Fused);
    at_once.min(manifest.optimizer.batch_sequences as usize).max(1) * manifest.model.context() as usize
}

/// What the run's model costs in a team whose captain computes with these kernels, as it reckons when it cuts, and the microbatches of each lane. Memory is that of the
/// longest microbatch, time that of a mean one: two lanes of a small batch have half of it each.
pub fn costs(
    manifest: &RunManifest,
    options: &TrainingOptions,
    threads: usize,
    wire: Wire,
    kernels: Kernels,
) -> (ModelCosts, Vec<usize>) {
    let sequences = manifest.optimizer.batch_sequences;
    let lanes = InParts::of(manifest, options, kernels == Kernels::Fused).microbatches_of(sequences as usize);
    let microbatches = lanes.iter().sum::<usize>().max(1);
    let tokens = f64::from(sequences) * f64::from(manifest.model.context()) / microbatches as f64;
    let (costing, spec) = (Costing { manifest, options, threads, kernels }, transformer_of(manifest));
    let (one, ends) = (layers(0..1), layers(0..0));
    let activations = |part: &StageSpec, held| costing.memory(part, held).activations;
    // Streams and what blocks keep grow with layers and microbatches, scratch with neither.
    let held = activations(&one, 2).saturating_sub(activations(&one, 1));
    let two = if spec.layers > 1 { layers(0..2) } else { layers(0..1) };
    let by_layer = activations(&two, 1).saturating_sub(activations(&one, 1)).saturating_sub(held);
    let (state, parameters) = costing.state(&one);
    let layer = LayerCosts {
        operations: costing.operations(&one, tokens),
        bytes: costing.held_always(&one) + by_layer,
        held_bytes: held,
        // Its parameters are copied for exchanges, and sent after them. All of that is in the machine's memory, not in a GPU's.
        kept_bytes: if kernels == Kernels::Cuda { 0 } else { state + parameters },
        copied_bytes: parameters,
        moved_bytes: costing.moved(&one),
    };
    let of_end = |part: StageSpec| LayerCosts {
        operations: costing.operations(&part, tokens),
        bytes: costing.held_always(&part) + activations(&part, 1).saturating_sub(activations(&ends, 1)),
        moved_bytes: costing.moved(&part),
        ..LayerCosts::default()
    };
    let codec = StreamCodec::new(wire, spec.width as usize);
    let costs = ModelCosts {
        layers: spec.layers,
        layer,
        embedding: of_end(StageSpec { embeds: true, ..layers(0..0) }),
        head: of_end(StageSpec { predicts: true, ..layers(spec.layers..spec.layers) }),
        stream_bytes: codec.bytes(tokens.ceil() as usize) as u64,
        stage_bytes: activations(&one, 1).saturating_sub(held + by_layer),
        batch_tokens: u64::from(manifest.optimizer.batch_sequences) * u64::from(spec.context),
        borders: borders(manifest),
    };
    (costs, lanes)
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;
    use murmur_protocol::team::Place;

    use super::*;
    use crate::measure::operations_per_token;

    #[test]
    fn a_table_that_is_embedding_and_head_is_counted_once() {
        let model = TransformerModel {
            layers: 4,
            width: 64,
            heads: 2,
            feed_forward: 96,
            context: 32,
            vocabulary: 5000,
            ..Default::default()
        };
        let mut manifest = RunManifest::default();
        manifest.optimizer.batch_sequences = 4;
        for rank in [0, 2] {
            manifest.lora.rank = rank;
            let options = TrainingOptions { micro_batch: Some(1), ..TrainingOptions::default() };
            let both = [false, true].map(|tied_head| {
                manifest.model = TransformerModel { tied_head, ..model.clone() }.into();
                costs(&manifest, &options, 1, Wire::F32, Kernels::Fused).0
            });
            let [untied, tied] = &both;
            // Parameters, gradient and two moments; or the frozen table alone.
            let table = 5000 * 64 * 4 * if rank == 0 { 4 } else { 1 };
            assert_eq!(untied.embedding.bytes, table);
            assert_eq!(untied.head.bytes - tied.head.bytes, table);
            let rows_of_a_batch = if rank == 0 { 4 * 32 * 64 * 4 } else { 0 };
            assert_eq!(tied.embedding.bytes - untied.embedding.bytes, rows_of_a_batch);
            assert_eq!((tied.head.operations, &tied.layer), (untied.head.operations, &untied.layer));
        }
    }

    #[test]
    fn the_microbatches_of_a_batch_have_its_tokens_together() {
        let model =
            TransformerModel { layers: 4, width: 64, heads: 2, feed_forward: 96, context: 32, ..Default::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        for (sequences, micro_batch) in [(16, None), (16, Some(2)), (7, Some(3)), (1, None)] {
            manifest.optimizer.batch_sequences = sequences;
            let options = TrainingOptions { micro_batch, ..TrainingOptions::default() };
            let (costs, lanes) = costs(&manifest, &options, 1, Wire::F32, Kernels::Fused);
            let microbatches = lanes.iter().sum::<usize>();
            let tokens = (sequences * 32) as usize;
            let streams = microbatches as u64 * costs.stream_bytes;
            let exact = StreamCodec::new(Wire::F32, 64).bytes(tokens) as u64;
            assert!((exact..exact + microbatches as u64 * 4 * 64).contains(&streams), "{sequences} {micro_batch:?}");
            let all = operations_per_token(transformer_of(&manifest)) * tokens as f64;
            let ends = costs.embedding.operations + costs.head.operations;
            let summed = microbatches as f64 * (ends + 4.0 * costs.layer.operations);
            assert!((summed / all - 1.0).abs() < 1e-9, "{summed} {all}");
        }
    }
    /// Where all weights are trained a captain spares gradients and activations, and no more.
    #[test]
    fn what_a_captain_keeps_of_the_layers_of_others_is_counted() {
        let model =
            TransformerModel { layers: 4, width: 64, heads: 2, feed_forward: 96, context: 32, ..Default::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        let options = TrainingOptions::default();
        let of = |manifest: &RunManifest| costs(manifest, &options, 1, Wire::F32, Kernels::Fused).0;
        let trained = |manifest: &RunManifest| PartLengths::of(manifest, &layers(0..1), false).trained as u64;
        let all = of(&manifest);
        // Parameters and two moments, and the parameters once more on their way.
        assert_eq!((all.layer.kept_bytes, all.layer.copied_bytes), (16 * trained(&manifest), 4 * trained(&manifest)));
        let (least, more) = captain_needs(&manifest, &options, (Wire::F32, 1, Kernels::Fused));
        assert!(least > 4 * 16 * trained(&manifest) && more > 0, "{least} {more}");
        let place = |memory_bytes| Place { memory_bytes, operations_per_second: 1.0, link: LINK };
        let helpers = [(murmur_protocol::PeerId::from_public_key([1; 32]), place(1 << 40))];
        let cut = |memory| murmur_protocol::team::cut::best_team(&all, &place(memory), &helpers, 2);
        assert!(cut(least - 1).is_none(), "it fits nowhere without what the captain keeps");
        let cut = cut(least).expect("it fits");
        assert_eq!(murmur_protocol::team::cut::bytes_of(&all, &cut)[0], least);
        manifest.lora.rank = 2;
        let adapters = of(&manifest);
        assert_eq!(adapters.layer.kept_bytes, 16 * trained(&manifest));
        assert!(20 * adapters.layer.kept_bytes < all.layer.kept_bytes);
    }

    const LINK: murmur_protocol::team::Link =
        murmur_protocol::team::Link { up: f64::INFINITY, down: f64::INFINITY, latency: 0.0 };
}
