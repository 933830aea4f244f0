//! Where the layers of a model go that several devices hold together: counted operations over measured speeds, under each
//! device's memory, by exact dynamic programming ([`arrange`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use murmur_protocol::RunManifest;
use murmur_protocol::team::arrange::{Costs, Order, arrange};
use murmur_protocol::team::schedule::{busy, in_flight};

use crate::engine::cut::why_not_cut;
use crate::engine::options::TrainingOptions;
use crate::measure::operations_of_stage;
use crate::memory::{MemoryEstimate, Saved, Table};
use crate::model::{StageSpec, transformer_of};
use crate::ops::Kernels;
use crate::replica::InParts;

/// Stages of a pipeline, at most: a guess. The time to find a cut grows with their square.
const STAGES_MAX: usize = 16;

/// What a device has for a stage.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// That compute there.
    pub kernels: Kernels,
    /// Threads that compute there, on the CPU.
    pub threads: usize,
    /// Operations a second, in any unit that all places share.
    pub speed: f64,
    /// Bytes that a stage may take; `None` where nobody knows.
    pub free: Option<u64>,
}

/// A cut of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// In the order of the model; a device that would only delay the others has none.
    pub stages: Vec<PlacedStage>,
    /// The share of all stages' time in which they compute: the rest is the bubble at the ends of a batch, and waiting for the
    /// slowest.
    pub busy: f64,
}

/// A stage, and where it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedStage {
    /// Index of its place.
    pub place: usize,
    /// Which part of the model.
    pub stage: StageSpec,
    /// What it takes.
    pub memory: MemoryEstimate,
}

/// Why there is no cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCut {
    /// Whatever the devices.
    #[error("the model is not cut into stages: {0}")]
    Model(&'static str),
    /// Their memory is too small, together or in the pieces that layers come in.
    #[error("no cut of the model fits the devices' memory")]
    Memory,
}

/// The cut in which a batch takes the least time, over these devices in this order.
///
/// # Errors
/// When the model cannot be cut, or no cut fits.
pub fn cut(manifest: &RunManifest, options: &TrainingOptions, places: &[Place]) -> Result<Cut, NoCut> {
    if let Some(reason) = why_not_cut(manifest) {
        return Err(NoCut::Model(reason));
    }
    if places.iter().any(|place| place.kernels == Kernels::Composed) {
        return Err(NoCut::Model("candle's operations compute no stages"));
    }
    let spec = transformer_of(manifest);
    let all_on_cpu = places.iter().all(|place| place.kernels == Kernels::Fused);
    let stage = |layers: &Range<u32>| StageSpec {
        embeds: layers.start == 0,
        predicts: layers.end == spec.layers,
        layers: layers.clone(),
    };
    let seconds = |place: usize, layers: &Range<u32>| {
        operations_of_stage(spec, &stage(layers), options.recompute) / places[place].speed
    };
    let saved = if all_on_cpu { Saved::InPieces } else { Saved::Whole };
    let (mut best, known): (Option<(f64, Cut)>, _) = (None, RefCell::new(BTreeMap::new()));
    for stages in 1..=places.len().min(spec.layers as usize).min(STAGES_MAX) {
        let options = options.in_microbatches(manifest, stages, all_on_cpu);
        let in_parts = InParts::of(manifest, &options, all_on_cpu);
        let microbatches = in_parts.count(manifest.optimizer.batch_sequences as usize);
        let memory = |number: usize, place: usize, layers: &Range<u32>| {
            let (held, stage) = (in_flight(number, stages, microbatches), stage(layers));
            let Place { kernels, threads, .. } = places[place];
            // Blocks are alike, so their number says it all.
            let of = (stage.layers.len(), stage.embeds, stage.predicts);
            let key = (kernels == Kernels::Cuda, threads, options.micro_batch, held, of);
            let estimate = || {
                MemoryEstimate::of_stage(manifest, &options, (kernels, threads), &stage, held, (Table::Copied, saved))
            };
            *known.borrow_mut().entry(key).or_insert_with(estimate)
        };
        let cost = |number: usize, place: usize, layers: Range<u32>| {
            let fits = places[place].free.is_none_or(|free| memory(number, place, &layers).on_device() <= free);
            fits.then(|| Costs::of(seconds(place, &layers)))
        };
        let arrangements = arrange(spec.layers, places.len(), stages, Order::AsListed, cost);
        let Some((slowest, found)) = arrangements.best(spec.layers, |costs| costs.slowest) else { continue };
        let total = slowest * (microbatches + stages - 1) as f64;
        // Fewer stages where more gain nothing.
        if best.as_ref().is_none_or(|(least, _)| total < *least) {
            let each: Vec<f64> = found.iter().map(|(place, layers)| seconds(*place, layers)).collect();
            let placed = found.iter().enumerate().map(|(number, (place, layers))| PlacedStage {
                place: *place,
                stage: stage(layers),
                memory: memory(number, *place, layers),
            });
            best = Some((total, Cut { stages: placed.collect(), busy: busy(&each, microbatches) }));
        }
    }
    best.map(|(_, cut)| cut).ok_or(NoCut::Memory)
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{MlpModel, TransformerModel};

    use super::*;
    use crate::engine::options::Precision;

    fn manifest() -> RunManifest {
        let model =
            TransformerModel { layers: 12, width: 256, heads: 4, feed_forward: 768, ..TransformerModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.optimizer.batch_sequences = 16;
        manifest
    }

    fn place(speed: f64, free: Option<u64>) -> Place {
        Place { kernels: Kernels::Fused, threads: 1, speed, free }
    }

    #[test]
    fn unlike_devices_get_unlike_cuts_and_memory_decides_before_speed() {
        let options = TrainingOptions { micro_batch: Some(2), ..TrainingOptions::default() };
        let layers = |cut: &Cut| cut.stages.iter().map(|stage| stage.stage.layers.len()).collect::<Vec<_>>();
        let alike = cut(&manifest(), &options, &[place(1.0, None); 2]).expect("a cut");
        assert_eq!(layers(&alike), [6, 6]);
        assert!(alike.busy > 0.85 && alike.busy < 1.0, "{}", alike.busy);
        let unlike = cut(&manifest(), &options, &[place(3.0, None), place(1.0, None)]).expect("a cut");
        assert_eq!(layers(&unlike), [9, 3]);
        // Just not enough for nine layers.
        let nine = unlike.stages[0].memory.on_device();
        let narrow = cut(&manifest(), &options, &[place(3.0, Some(nine - 1)), place(1.0, None)]).expect("a cut");
        assert_eq!(layers(&narrow), [8, 4]);
        // A device that is slower than the bubble it makes is left out.
        let slow = cut(&manifest(), &options, &[place(1.0, None), place(0.001, None)]).expect("a cut");
        assert_eq!((layers(&slow), slow.stages[0].place, slow.busy), (vec![12], 0, 1.0));
        let none = cut(&manifest(), &options, &[place(1.0, Some(1 << 20)); 2]);
        assert_eq!(none, Err(NoCut::Memory));
    }

    #[test]
    fn what_cannot_be_cut_is_said() {
        let manifest = RunManifest { model: MlpModel::default().into(), ..manifest() };
        let cut = cut(&manifest, &TrainingOptions::default(), &[place(1.0, None); 2]);
        assert!(matches!(cut, Err(NoCut::Model(_))));
    }

    /// It has parameters and a gradient, as a head of its own would have, but no moments; of a frozen one there is only the base.
    #[test]
    fn the_copy_of_a_tied_table_is_counted_in_the_last_stage() {
        let tied = TransformerModel { tied_head: true, ..transformer_of(&manifest()).clone() };
        let (table, options) = (4 * u64::from(tied.vocabulary * tied.width), TrainingOptions::default());
        let options = TrainingOptions { micro_batch: Some(2), ..options };
        for (kernels, precision) in
            [(Kernels::Fused, Precision::F32), (Kernels::Cuda, Precision::F32), (Kernels::Cuda, Precision::Bf16)]
        {
            let options = TrainingOptions { precision, ..options };
            for (rank, base_bits) in [(0, 32), (2, 32), (2, 8)] {
                let mut manifests = [manifest(), RunManifest { model: tied.clone().into(), ..manifest() }];
                manifests.iter_mut().for_each(|manifest| {
                    (manifest.lora.rank, manifest.lora.base_bits) = (rank, base_bits);
                });
                let place = Place { kernels, ..place(1.0, None) };
                let cuts = manifests.each_ref().map(|manifest| cut(manifest, &options, &[place; 2]).expect("a cut"));
                let [untied, tied] = cuts.each_ref().map(|cut| cut.stages.last().expect("two").memory);
                assert_eq!(cuts[0].stages[1].stage, cuts[1].stages[1].stage);
                // A GPU has a copy and a correction of its own parameters on their way.
                let under_way = if kernels == Kernels::Cuda && rank == 0 { 2 * table } else { 0 };
                assert_eq!(untied.parameters - tied.parameters, under_way, "{kernels:?} {precision:?} {rank}");
                assert_eq!(untied.moments - tied.moments, if rank == 0 { 2 * table } else { 0 });
                assert_eq!((untied.gradient, untied.activations), (tied.gradient, tied.activations));
            }
        }
    }
}
