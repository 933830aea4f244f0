//! What a GPU holds of a model that is offloaded.

use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::{LoraSpec, OptimizerSpec, TransformerModel};

use super::base::slot_words;
use super::slots::slot_values;
use super::stages_of;
use super::streams::STREAMS_UNDER_WAY;
use super::vectors::{leaving_values, muon_values};
use crate::engine::options::Precision;
use crate::gpu::adapters::panel_of;
use crate::gpu::transformer::activation_values;
use crate::gpu::{Kind, SUM_BLOCKS};
use crate::model::StageSpec;
use crate::model::transformer::{held_layout, transformer_layout};
use crate::optimizer::Optimizer;

/// In values of four bytes, where all parameters are trained.
pub(crate) struct DeviceValues {
    /// Of two stages.
    pub(crate) weights: usize,
    /// Of one stage; and what leaves at once: a copy, while the next is computed, or later two pieces that were stepped.
    pub(crate) gradients: usize,
    /// Of the largest transfer.
    pub(crate) transfer: usize,
    /// With streams on their way, and what a step needs.
    pub(crate) activations: usize,
}

impl DeviceValues {
    /// With so many sequences of a batch computed at once.
    pub(crate) fn of(
        spec: &TransformerModel,
        layout: &ModelLayout,
        optimizer: &OptimizerSpec,
        (batch, sequences, precision): (usize, usize, Precision),
    ) -> DeviceValues {
        let layouts: Vec<ModelLayout> = stages_of(spec).iter().map(|stage| held_layout(spec, stage)).collect();
        let lengths: Vec<usize> = layouts.iter().map(ModelLayout::parameters).collect();
        let optimizer = Optimizer::new(optimizer, layout);
        let slots = slot_values(&lengths).map(|values| values.max(muon_values(&optimizer)));
        let held: usize = slots.iter().sum();
        let rounded = if precision == Precision::F32 { 0 } else { held.div_ceil(2) };
        let longest = lengths.into_iter().max().unwrap_or(0);
        let tensors = layouts.iter().map(|layout| layout.tensors().len()).max().unwrap_or(0);
        let room = slots[0].min(slots[1]);
        let sums = tensors * SUM_BLOCKS * Kind::F64.size() / Kind::F32.size();
        // Of a tied table, the rows that a batch's tokens name.
        let rows = if spec.tied_head { (batch * spec.context as usize).min(spec.vocabulary as usize) } else { 0 };
        let passing = passing_values(spec, (sequences, precision), 0) + rows * spec.width as usize;
        DeviceValues {
            weights: held + rounded,
            gradients: longest + longest.max(2 * leaving_values(&optimizer, room)),
            transfer: longest.max(room),
            activations: passing + optimizer.scratch_values(1) + sums,
        }
    }
}

/// Values of four bytes that so many sequences take which pass through stages by turns, beside adapters of this rank or none.
pub(crate) fn passing_values(
    spec: &TransformerModel,
    (sequences, precision): (usize, Precision),
    rank: usize,
) -> usize {
    // The buffers of both ends are there beside those of a block.
    let stage = StageSpec { layers: 0..1, embeds: true, predicts: true };
    let streams = STREAMS_UNDER_WAY * sequences * (spec.context * spec.width) as usize;
    // The replica of adapters has angles of its own, which it does not use.
    let angles = if rank > 0 { (spec.context * spec.resolved_head_width()) as usize } else { 0 };
    activation_values(spec, (&stage, 1), sequences, precision, (true, rank)) + streams + angles
}

/// Bytes of a frozen base, read by products as `kind`, of which two stages are there at a time: of both, with the panel in which
/// they are decoded; and of the larger one.
pub(crate) fn passing_base_bytes(spec: &TransformerModel, kind: Kind, lora: &LoraSpec) -> (usize, usize) {
    let words = slot_words(spec, kind, lora);
    let panel = panel_of(&transformer_layout(spec), lora) * kind.size();
    ((words[0] + words[1]) * Kind::F32.size() + panel, words[0].max(words[1]) * Kind::F32.size())
}
