//! What a GPU holds of a model that is offloaded.

use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::{OptimizerSpec, TransformerModel};

use super::slots::{slot_values, stages_of};
use super::streams::STREAMS_UNDER_WAY;
use crate::engine::options::Precision;
use crate::gpu::transformer::activation_values;
use crate::gpu::{Kind, SUM_BLOCKS};
use crate::model::StageSpec;
use crate::model::transformer::stage_layout;
use crate::optimizer::Optimizer;

/// In values of four bytes.
pub(crate) struct DeviceValues {
    /// Of two stages.
    pub(crate) weights: usize,
    /// Of one stage; and a copy, which leaves while the next is computed, as does a piece that was stepped.
    pub(crate) gradients: usize,
    /// With streams on their way, and what a step needs.
    pub(crate) activations: usize,
}

impl DeviceValues {
    /// With so many sequences computed at once.
    pub(crate) fn of(
        spec: &TransformerModel,
        layout: &ModelLayout,
        optimizer: &OptimizerSpec,
        (sequences, precision): (usize, Precision),
    ) -> DeviceValues {
        let layouts: Vec<ModelLayout> = stages_of(spec).iter().map(|stage| stage_layout(spec, stage)).collect();
        let lengths: Vec<usize> = layouts.iter().map(ModelLayout::parameters).collect();
        let optimizer = Optimizer::new(optimizer, layout);
        let slots = slot_values(&lengths, &optimizer);
        let held: usize = slots.iter().sum();
        let rounded = if precision == Precision::F32 { 0 } else { held.div_ceil(2) };
        let longest = lengths.into_iter().max().unwrap_or(0);
        // The buffers of both ends are there beside those of a block.
        let stage = StageSpec { layers: 0..1, embeds: true, predicts: true };
        let of_pass = activation_values(spec, (&stage, 1), sequences, precision, (true, 0));
        let streams = STREAMS_UNDER_WAY * sequences * (spec.context * spec.width) as usize;
        let tensors = layouts.iter().map(|layout| layout.tensors().len()).max().unwrap_or(0);
        let sums = tensors * SUM_BLOCKS * Kind::F64.size() / Kind::F32.size();
        DeviceValues {
            weights: held + rounded,
            gradients: longest + longest.max(slots[0].min(slots[1])),
            activations: of_pass + streams + optimizer.scratch_values(1) + sums,
        }
    }
}
