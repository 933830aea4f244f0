//! Pipelines against one replica of the whole model: bit for bit.

use std::sync::atomic::{AtomicUsize, Ordering};

use murmur_protocol::manifest::{LoraSpec, OptimizerKind, OptimizerSpec, TransformerModel};

use super::*;
use crate::data::TokenBatch;
use crate::model::stage::{BackwardOutput, StageSpec};
use crate::model::{Model, Transformer};
use crate::ops::gradient_check::random_tokens;
use crate::replica::HostReplica;
use crate::replica::host::HostStage;

fn spec(tied_head: bool) -> TransformerModel {
    TransformerModel { layers: 6, width: 16, heads: 2, feed_forward: 24, context: 12, tied_head, ..Default::default() }
}

/// A norm that clips every step: one wrong bit of it would be in every parameter.
fn optimizer(kind: OptimizerKind) -> OptimizerSpec {
    OptimizerSpec { kind, gradient_norm_max: 0.1, match_batch: true, ..OptimizerSpec::default() }
}

fn batch(examples: usize, seed: u64) -> Batch {
    let tokens = |seed| random_tokens(examples * 12, 256, seed);
    Batch::Tokens(TokenBatch { inputs: tokens(seed), targets: tokens(seed + 50), sequences: examples })
}

#[derive(Clone, Copy, Debug)]
struct Way {
    kind: OptimizerKind,
    is_tied: bool,
    /// Of the base beside which adapters are trained.
    base_bits: Option<u32>,
    recompute: bool,
    micro_batch: usize,
    moments_in_8_bits: bool,
}

/// All weights, in 32 bits, with activations that are kept.
fn way(kind: OptimizerKind, micro_batch: usize) -> Way {
    Way { kind, is_tied: false, base_bits: None, recompute: false, micro_batch, moments_in_8_bits: false }
}

/// The model, or a stage of it, with its parameters.
fn begun(stage: StageSpec, way: Way) -> (Box<dyn Model>, Vec<f32>) {
    let base = Transformer::of_stage(&spec(way.is_tied), stage);
    let mut model: Box<dyn Model> = if let Some(base_bits) = way.base_bits {
        let targets = vec!["q_proj".to_owned(), "up_proj".to_owned()];
        let lora = LoraSpec { rank: 2, targets, base_bits, ..LoraSpec::default() };
        let mut weights = base.initial_parameters(1);
        weights.extend(&Transformer::new(&spec(true)).initial_parameters(1)[..base.copied()]);
        Box::new(base.with_adapters(weights, &lora))
    } else {
        Box::new(base)
    };
    model.set_recompute(way.recompute);
    let parameters = model.initial_parameters(1);
    (model, parameters)
}

fn on_host((model, parameters): (Box<dyn Model>, Vec<f32>), way: Way) -> HostReplica {
    let optimizer = Optimizer::new(&optimizer(way.kind), model.layout()).with_moments(way.moments_in_8_bits);
    let moments = optimizer.moments();
    HostReplica::with_moments(model, parameters, optimizer, way.micro_batch, moments)
}

fn whole(way: Way) -> HostReplica {
    on_host(begun(StageSpec::whole(&spec(way.is_tied)), way), way)
}

fn stages(way: Way, cuts: &[u32], threads: usize) -> Vec<Box<dyn Stage>> {
    let stage = |stage| {
        let replica = on_host(begun(stage, way), way);
        Box::new(HostStage::new(replica, threads).expect("threads")) as Box<dyn Stage>
    };
    StageSpec::cut(&spec(way.is_tied), cuts).into_iter().map(stage).collect()
}

fn pipeline(way: Way, stages: Vec<Box<dyn Stage>>) -> Pipeline {
    let (model, _) = begun(StageSpec::whole(&spec(way.is_tied)), way);
    let parts = InParts { micro_batch: way.micro_batch, has_lanes: model.another().is_some() };
    let optimizer = Optimizer::new(&optimizer(way.kind), model.layout()).with_moments(way.moments_in_8_bits);
    Pipeline::new(stages, model.layout().clone(), optimizer, parts).expect("a copy of the table")
}

/// All that training shows: losses and norms, and at the end gradient, parameters, moments and an evaluation.
fn trained(
    replica: &mut dyn Replica,
    steps: std::ops::Range<u64>,
) -> (Vec<f64>, [Vec<f32>; 2], (Moments, u64), Evaluation) {
    replica.set_members(3.0);
    let mut numbers = Vec::new();
    for step in steps {
        // The last one is of few examples: some microbatches are smaller, and some batches have one alone.
        let batch = batch([5, 4, 1][step as usize % 3], step);
        let loss = replica.compute_gradient(&batch).expect("a gradient");
        let norm = replica.gradient_norm().expect("a norm");
        replica.step(norm, 0.01).expect("a step");
        numbers.extend([loss, norm]);
    }
    let vectors = [replica.gradient().expect("one").into_owned(), replica.parameters().expect("some").into_owned()];
    let evaluation = replica.evaluate(&batch(4, 99)).expect("an evaluation");
    (numbers, vectors, replica.moments().expect("some"), evaluation)
}

#[test]
fn any_cut_any_microbatches_and_any_threads_train_as_one_replica_does_to_the_bit() {
    let plain = way(OptimizerKind::AdamW, 4);
    let ways = [
        (plain, &[3][..], 1),
        (plain, &[1, 2, 3, 4, 5], 2),
        (Way { kind: OptimizerKind::Muon, micro_batch: 2, ..plain }, &[1, 4], 3),
        (Way { recompute: true, micro_batch: 1, ..plain }, &[5], 1),
        (Way { base_bits: Some(32), micro_batch: 2, ..plain }, &[2, 3], 2),
        (Way { base_bits: Some(8), micro_batch: 2, ..plain }, &[5], 1),
        (Way { moments_in_8_bits: true, ..plain }, &[1, 4], 2),
        (Way { kind: OptimizerKind::Muon, moments_in_8_bits: true, ..plain }, &[3], 1),
    ];
    for (is_tied, (way, cuts, threads)) in [false, true].into_iter().flat_map(|is_tied| ways.map(|way| (is_tied, way)))
    {
        let way = Way { is_tied, ..way };
        let expected = trained(&mut whole(way), 0..4);
        assert!(expected.0.iter().all(|number| number.is_finite() && *number > 0.1), "{:?}", expected.0);
        let found = trained(&mut pipeline(way, stages(way, cuts, threads)), 0..4);
        assert_eq!(found.0, expected.0, "losses and norms of cuts at {cuts:?} of {way:?}");
        assert!(found == expected, "gradient, parameters, moments and evaluation of cuts at {cuts:?} of {way:?}");
    }
}

/// Gradients are of the batch's mean, in however many microbatches (torchtitan #1733).
#[test]
fn four_microbatches_give_the_gradient_of_one() {
    let way = |micro_batch| Way { recompute: true, ..way(OptimizerKind::AdamW, micro_batch) };
    let gradient = |micro_batch| {
        let mut pipeline = pipeline(way(micro_batch), stages(way(micro_batch), &[3], 1));
        let loss = pipeline.compute_gradient(&batch(4, 1)).expect("a gradient");
        (pipeline.gradient().expect("one").into_owned(), loss, pipeline.parts.count(4))
    };
    let ((one, loss, count), (four, four_loss, four_count)) = (gradient(4), gradient(1));
    assert_eq!((count, four_count), (1, 4));
    assert!((loss - four_loss).abs() < 1e-6, "{loss} {four_loss}");
    let error = one.iter().zip(&four).fold(0.0_f32, |error, (one, four)| error.max((one - four).abs()));
    let largest = one.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    assert!(error < 1e-6 && largest > 0.01, "{error} of {largest}");
}

#[test]
fn microbatches_are_counted_as_they_are_made() {
    let way = |micro_batch| way(OptimizerKind::AdamW, micro_batch);
    for micro_batch in 1..6 {
        let pipeline = pipeline(way(micro_batch), stages(way(micro_batch), &[3], 1));
        for examples in 1..8 {
            let made = pipeline.parts.microbatches(&batch(examples, 1)).0;
            let of_all: usize = made.iter().map(|microbatch| microbatch.batch.examples()).sum();
            assert_eq!((made.len(), of_all), (pipeline.parts.count(examples), examples), "{micro_batch}");
        }
    }
}

#[test]
fn what_one_cut_has_saved_goes_on_under_another() {
    for (moments_in_8_bits, is_tied) in [(false, false), (true, false), (false, true)] {
        let way = Way { moments_in_8_bits, is_tied, ..way(OptimizerKind::Muon, 2) };
        let mut uninterrupted = whole(way);
        let mut first = pipeline(way, stages(way, &[2, 4], 1));
        trained(&mut uninterrupted, 0..2);
        trained(&mut first, 0..2);
        let mut second = pipeline(way, stages(way, &[1], 1));
        second.set_parameters(&first.parameters().expect("some")).expect("taken");
        let (moments, steps) = first.moments().expect("some");
        second.set_moments(moments, steps).expect("taken");
        assert!(trained(&mut second, 2..5) == trained(&mut uninterrupted, 2..5));
    }
}

/// Fails at one call of all.
struct Failing {
    stage: Box<dyn Stage>,
    calls_left: AtomicUsize,
}

impl Failing {
    fn call(&self) -> Result<()> {
        let failed = self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0;
        if failed { Err(Error::Msg("out of memory".to_owned())) } else { Ok(()) }
    }
}

impl Stage for Failing {
    fn replica(&self) -> &dyn Replica {
        self.stage.replica()
    }

    fn replica_mut(&mut self) -> &mut dyn Replica {
        self.stage.replica_mut()
    }

    fn begin(&mut self) -> Result<()> {
        self.stage.begin()
    }

    fn forward(&mut self, microbatch: &Microbatch, input: Option<Vec<f32>>) -> Result<Option<Vec<f32>>> {
        self.call()?;
        self.stage.forward(microbatch, input)
    }

    fn backward(&mut self, microbatch: &Microbatch, to: Option<Vec<f32>>, share: f32) -> Result<BackwardOutput> {
        self.call()?;
        self.stage.backward(microbatch, to, share)
    }

    fn end(&mut self, lanes: usize) -> Result<()> {
        self.stage.end(lanes)
    }

    fn copied(&self) -> usize {
        self.stage.copied()
    }

    fn set_copy(&mut self, table: &[f32]) -> Result<()> {
        self.stage.set_copy(table)
    }

    fn copy_gradient(&mut self, lane: usize) -> Result<Vec<f32>> {
        self.stage.copy_gradient(lane)
    }

    fn table(&self, values: usize) -> Result<Cow<'_, [f32]>> {
        self.stage.table(values)
    }

    fn set_table_gradient(&mut self, lane: usize, values: &[f32]) -> Result<()> {
        self.stage.set_table_gradient(lane, values)
    }

    fn evaluate(&mut self, batch: &Batch, input: Option<Vec<f32>>) -> Result<Evaluated> {
        self.call()?;
        self.stage.evaluate(batch, input)
    }
}

#[test]
fn an_evaluation_has_as_many_parts_as_a_step() {
    let way = Way { recompute: true, ..way(OptimizerKind::AdamW, 2) };
    for (calls, suffice) in [(2, false), (3, true)] {
        let mut stages = stages(way, &[3], 1);
        let stage = stages.remove(0);
        stages.insert(0, Box::new(Failing { stage, calls_left: AtomicUsize::new(calls) }));
        assert_eq!(pipeline(way, stages).evaluate(&batch(5, 0)).is_ok(), suffice, "{calls}");
    }
}

#[test]
fn a_stage_that_fails_ends_the_batch_with_its_reason_and_the_next_batch_is_as_if_nothing_had_been() {
    for (failing, is_tied) in (0..3).flat_map(|failing| [(failing, false), (failing, true)]) {
        let way = Way { is_tied, ..way(OptimizerKind::AdamW, 2) };
        let expected = trained(&mut whole(way), 1..3);
        for calls in 0..10 {
            let mut stages = stages(way, &[2, 4], 1);
            let stage = stages.remove(failing);
            stages.insert(failing, Box::new(Failing { stage, calls_left: AtomicUsize::new(calls) }));
            let mut pipeline = pipeline(way, stages);
            let error = pipeline.compute_gradient(&batch(5, 0)).expect_err("a stage fails");
            assert!(error.to_string().contains("out of memory"), "{error}");
            if calls == 4 {
                assert!(trained(&mut pipeline, 1..3) == expected, "stage {failing}");
            }
        }
    }
}
