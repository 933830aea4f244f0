//! The engine as its driver sees it.

use murmur_protocol::bulk::Codes;
use murmur_protocol::manifest::{FragmentCut, OptimizerKind, TransformerModel};
use murmur_protocol::{Correction, Fragment, Part, Selection, Snapshot, Vector};

use super::*;
use crate::gpu::emulated::Emulated;
use crate::gpu::{GpuReplica, Trained};

fn small() -> TransformerModel {
    TransformerModel { layers: 2, width: 32, heads: 2, feed_forward: 64, context: 64, ..Default::default() }
}

fn manifest() -> RunManifest {
    manifest_of(small())
}

fn manifest_of(model: TransformerModel) -> RunManifest {
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    manifest.optimizer.batch_sequences = 4;
    manifest.data.validation_sequences = 6;
    manifest
}

fn engine(manifest: &RunManifest) -> Engine {
    Engine::new(manifest, Corpus::grammar(), [1; 32], Device::Cpu).expect("an engine")
}

fn engine_in(precision: Precision, manifest: &RunManifest) -> Engine {
    let options = TrainingOptions { precision, ..TrainingOptions::default() };
    Engine::with_options(manifest, Corpus::grammar(), [1; 32], Device::Cpu, options).expect("an engine")
}

fn with_moments(in_8_bits: bool, manifest: &RunManifest) -> Engine {
    let options = TrainingOptions { moments_in_8_bits: in_8_bits, ..TrainingOptions::default() };
    Engine::with_options(manifest, Corpus::grammar(), [1; 32], Device::Cpu, options).expect("an engine")
}

fn values(engine: &mut Engine) -> Vec<f32> {
    engine.snapshot(Selection::Part(Part::MODEL)).expect("a snapshot").values.values().to_vec()
}

fn correction(layout: &ModelLayout, step: f32) -> Correction {
    let count = layout.parameters();
    Correction::new(Codes::Narrow(vec![1; count]), vec![step; count.div_ceil(murmur_protocol::bulk::BLOCK)])
}

#[test]
fn sixty_steps_reduce_the_loss_far_below_chance() -> Result<(), TrainingError> {
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let mut manifest = manifest();
        manifest.optimizer.kind = kind;
        let mut engine = engine(&manifest);
        let first = engine.validation_loss()?;
        assert!((first - 256_f64.ln()).abs() < 0.3, "{first}");
        for step in 0..60 {
            let report = engine.step(f64::from(step))?;
            assert_eq!(report.tokens, 4 * 64);
        }
        let last = engine.validation_loss()?;
        assert!(last < 3.0, "{kind:?}: {first} to {last}");
    }
    Ok(())
}

#[test]
fn a_restored_engine_repeats_the_same_bits() -> Result<(), TrainingError> {
    let (adamw, muon) = (OptimizerKind::AdamW, OptimizerKind::Muon);
    let kinds = [(adamw, false, 32), (adamw, true, 32), (muon, true, 32), (adamw, true, 8), (muon, true, 8)];
    for (outer_learning_rate, (kind, match_batch, bits)) in [0.0, 0.7, 0.0, 0.7, 0.0].into_iter().zip(kinds) {
        let mut manifest = manifest();
        manifest.gossip.outer_learning_rate = outer_learning_rate;
        (manifest.optimizer.kind, manifest.optimizer.match_batch) = (kind, match_batch);
        let mut engine = with_moments(bits == 8, &manifest);
        engine.set_members(4.0);
        let walk = |engine: &mut Engine| -> Result<(Vec<f32>, f64), TrainingError> {
            engine.step(1.0)?;
            engine.advance_outer()?;
            engine.step(2.0)?;
            let loss = engine.step(3.0)?.loss;
            Ok((values(engine), loss))
        };
        walk(&mut engine)?;
        let taken = values(&mut engine);
        engine.load_state(&[Snapshot::from(taken.clone()).to_payload()])?;
        engine.step(3.0)?;
        let saved = engine.save()?;
        let expected = walk(&mut engine)?;
        engine.restore(saved.clone())?;
        assert_eq!(walk(&mut engine)?, expected);
        let mut other = with_moments(bits == 8, &manifest);
        other.set_members(4.0);
        other.restore(saved.clone())?;
        assert_eq!(other.save()?, saved);
        assert_eq!(walk(&mut other)?, expected);
        // A node whose settings have changed goes on with nearly the same moments.
        let mut changed = with_moments(bits == 32, &manifest);
        changed.set_members(4.0);
        changed.restore(saved.clone())?;
        let state = changed.save()?;
        assert_eq!((saved.coded_moments.is_empty(), state.coded_moments.is_empty()), (bits == 32, bits == 8));
        let (found, loss) = walk(&mut changed)?;
        let furthest = found.iter().zip(&expected.0).fold(0.0_f32, |far, (left, right)| far.max((left - right).abs()));
        assert!((loss / expected.1 - 1.0).abs() < 1e-3 && furthest > 0.0, "{loss}, {}; {furthest}", expected.1);
    }
    Ok(())
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let train = |kind: OptimizerKind, (precision, moments_in_8_bits), threads: usize| {
        let mut manifest = manifest();
        (manifest.optimizer.kind, manifest.optimizer.match_batch) = (kind, true);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| {
            let options = TrainingOptions { precision, moments_in_8_bits, ..TrainingOptions::default() };
            let engine = Engine::with_options(&manifest, Corpus::grammar(), [1; 32], Device::Cpu, options);
            let mut engine = engine.expect("an engine");
            engine.set_members(4.0);
            let losses: Vec<f64> = (0..3).map(|step| engine.step(f64::from(step)).expect("a step").loss).collect();
            (losses, values(&mut engine))
        })
    };
    let (adamw, muon) = (OptimizerKind::AdamW, OptimizerKind::Muon);
    let ways = [(Precision::F32, false), (Precision::Bf16, false), (Precision::F32, true)];
    for (kind, way) in [(adamw, ways[0]), (muon, ways[0]), (adamw, ways[1]), (adamw, ways[2]), (muon, ways[2])] {
        assert!(train(kind, way, 1) == train(kind, way, 3), "{kind:?} {way:?}");
    }
}

#[test]
fn sixteen_bits_learn_what_thirty_two_do() -> Result<(), TrainingError> {
    if !Precision::Bf16.is_on_this_cpu() {
        println!("skipped: this processor has no products of 16 bits");
        return Ok(());
    }
    let train = |precision| -> Result<[f64; 2], TrainingError> {
        let mut engine = engine_in(precision, &manifest());
        let losses = (0..80).map(|step| engine.step(f64::from(step)).map(|report| report.loss));
        Ok([losses.sum::<Result<f64, _>>()?, engine.validation_loss()?])
    };
    let (exact, rounded) = (train(Precision::F32)?, train(Precision::Bf16)?);
    for (exact, rounded) in exact.into_iter().zip(rounded) {
        assert!(rounded != exact && (rounded / exact - 1.0).abs() < 0.002, "{rounded} and {exact}");
    }
    Ok(())
}

#[test]
fn moments_in_eight_bits_learn_what_those_in_thirty_two_do() -> Result<(), TrainingError> {
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let mut manifest = manifest();
        manifest.optimizer.kind = kind;
        let train = |in_8_bits| -> Result<[f64; 2], TrainingError> {
            let mut engine = with_moments(in_8_bits, &manifest);
            let losses = (0..80).map(|step| engine.step(f64::from(step)).map(|report| report.loss));
            Ok([losses.sum::<Result<f64, _>>()?, engine.validation_loss()?])
        };
        let (exact, rounded) = (train(false)?, train(true)?);
        for (exact, rounded) in exact.into_iter().zip(rounded) {
            assert!(rounded != exact && (rounded / exact - 1.0).abs() < 0.005, "{kind:?}: {rounded} and {exact}");
        }
    }
    Ok(())
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() -> Result<(), TrainingError> {
    let mut engine = engine(&manifest());
    engine.step(0.0)?;
    engine.apply(Part::MODEL, &correction(engine.layout(), f32::MAX))?;
    let before = engine.save()?;
    assert!(matches!(engine.step(1.0), Err(TrainingError::NotFinite { .. })));
    let mut after = engine.save()?;
    assert_ne!(after.counters.position, before.counters.position);
    after.counters.position = before.counters.position;
    assert_eq!(after, before);
    Ok(())
}

#[test]
fn a_correction_moves_model_and_slow_weights_alike() -> Result<(), TrainingError> {
    let mut manifest = manifest();
    manifest.gossip.outer_learning_rate = 0.7;
    let mut engine = engine(&manifest);
    engine.step(0.0)?;
    let before = engine.save()?;
    engine.apply(Part::MODEL, &correction(engine.layout(), 0.5))?;
    let after = engine.save()?;
    let moved = |before: &[f32], after: &[f32]| before.iter().zip(after).all(|(old, new)| *new == *old + 0.5);
    assert!(moved(&before.parameters, &after.parameters));
    let slow = |state: &EngineState| state.slow_weights.clone().expect("the outer momentum is on");
    assert!(moved(&slow(&before), &slow(&after)));
    assert_eq!(after.outer_momentum, before.outer_momentum);
    Ok(())
}

#[test]
fn fragments_cut_at_layers_are_copied_and_corrected_by_whole_layers() -> Result<(), TrainingError> {
    let mut manifest = manifest_of(TransformerModel { layers: 4, ..small() });
    (manifest.gossip.fragments, manifest.gossip.cut) = (3, FragmentCut::Layers);
    let mut engine = engine(&manifest);
    let layout = engine.layout().clone();
    let before = values(&mut engine);
    let fragment = Fragment { index: 1, count: 3 };
    let part = Part { vector: Vector::Model, fragment };
    let copy = engine.snapshot(Selection::Part(part))?.values.values().to_vec();
    engine.apply(part, &Correction::new(Codes::Narrow(vec![1; copy.len()]), vec![0.25; copy.len().div_ceil(256)]))?;
    let after = values(&mut engine);
    let moved: Vec<usize> =
        (0..before.len()).filter(|place| before[*place].to_bits() != after[*place].to_bits()).collect();
    let (first, last) = (moved[0], moved[moved.len() - 1]);
    assert_eq!((last + 1 - first, copy), (moved.len(), before[first..=last].to_vec()), "what was copied has moved");
    let tensors = layout.tensors();
    let begins = tensors.iter().find(|tensor| tensor.offset == first).expect("a tensor begins there");
    let ends = tensors.iter().find(|tensor| tensor.range().end == last + 1).expect("a tensor ends there");
    assert!(begins.name.contains("layers.1.") && ends.name.contains("layers.2."), "{begins:?} to {ends:?}");
    Ok(())
}

#[test]
fn a_joiner_takes_over_the_model_and_warms_up_again() -> Result<(), TrainingError> {
    let mut manifest = manifest();
    manifest.schedule.warmup_steps = 50;
    let mut engine = engine(&manifest);
    for step in 0..3 {
        engine.step(f64::from(step))?;
    }
    let model = vec![0.01; engine.layout().parameters()];
    engine.load_state(&[Snapshot::from(model.clone()).to_payload()])?;
    let state = engine.save()?;
    assert_eq!(state.parameters, model);
    assert!(state.first_moment.iter().chain(&state.second_moment).all(|value| *value == 0.0));
    let rates: Vec<f64> =
        (0..26).map(|_| engine.step(50.0).map(|report| report.learning_rate)).collect::<Result<_, _>>()?;
    let peak = manifest.optimizer.learning_rate;
    assert!((rates[0] - peak / 25.0).abs() < 1e-9 && rates[24] == peak && rates[25] == peak, "{rates:?}");
    Ok(())
}

#[test]
fn values_of_another_model_or_not_finite_are_refused() -> Result<(), TrainingError> {
    let mut engine = engine(&manifest());
    let saved = engine.save()?;
    let state = |values: Vec<f32>| [Snapshot::from(values).to_payload()];
    let short = engine.load_state(&state(vec![0.0; 3]));
    assert!(matches!(short, Err(TrainingError::WrongLength { actual: 3, .. })));
    let odd = engine.load_state(&state(vec![f32::NAN; saved.parameters.len()]));
    assert!(matches!(odd, Err(TrainingError::NotFiniteValues(_))));
    let short = Correction::new(Codes::Narrow(vec![1; 3]), vec![1.0]);
    assert!(matches!(engine.apply(Part::MODEL, &short), Err(TrainingError::WrongLength { .. })));
    let other = EngineState { slow_weights: Some(saved.parameters.clone()), ..saved.clone() };
    assert!(matches!(engine.restore(other), Err(TrainingError::OtherOuterMomentum(_))));
    let short = EngineState { second_moment: vec![0.0; 3], ..saved.clone() };
    assert!(matches!(engine.restore(short), Err(TrainingError::WrongLength { .. })));
    assert_eq!(engine.save()?, saved);
    Ok(())
}

#[test]
fn fused_and_composed_training_walk_the_same_path() -> Result<(), TrainingError> {
    let losses = |kernels| -> Result<Vec<f64>, TrainingError> {
        let options = TrainingOptions { kernels: Some(kernels), ..TrainingOptions::default() };
        let mut engine = Engine::with_options(&manifest(), Corpus::grammar(), [1; 32], Device::Cpu, options)?;
        (0..5).map(|step| engine.step(f64::from(step)).map(|report| report.loss)).collect()
    };
    let (fused, composed) = (losses(Kernels::Fused)?, losses(Kernels::Composed)?);
    assert!(fused.iter().zip(&composed).all(|(left, right)| (left - right).abs() < 1e-3), "{fused:?} {composed:?}");
    Ok(())
}

#[test]
fn micro_batches_and_recomputation_walk_the_same_path() -> Result<(), TrainingError> {
    let losses = |micro_batch, recompute| -> Result<Vec<f64>, TrainingError> {
        let options = TrainingOptions { micro_batch: Some(micro_batch), recompute, ..TrainingOptions::default() };
        let mut engine = Engine::with_options(&manifest(), Corpus::grammar(), [1; 32], Device::Cpu, options)?;
        (0..5).map(|step| engine.step(f64::from(step)).map(|report| report.loss)).collect()
    };
    let whole = losses(usize::MAX, false)?;
    assert_eq!(losses(1, true)?, losses(1, false)?, "recomputed activations have the same bits");
    for (micro_batch, recompute) in [(1, false), (3, false), (2, false), (usize::MAX, true)] {
        let parts = losses(micro_batch, recompute)?;
        assert!(whole.iter().zip(&parts).all(|(left, right)| (left - right).abs() < 1e-3), "{whole:?} {parts:?}");
    }
    Ok(())
}

#[test]
fn several_workers_walk_the_path_of_one_with_as_many_batches() -> Result<(), TrainingError> {
    let narrow = manifest();
    let mut wide = manifest();
    wide.optimizer.batch_sequences *= 2;
    let options = |kernels| TrainingOptions { kernels, ..TrainingOptions::default() };
    let engine = |manifest: &RunManifest, workers: usize, kernels| {
        let devices = vec![Device::Cpu; workers];
        Engine::on_base(manifest, None, Corpus::grammar(), [1; 32], &devices, options(kernels))
    };
    for kernels in [Kernels::Fused, Kernels::Composed] {
        let (mut several, mut one) = (engine(&narrow, 2, Some(kernels))?, engine(&wide, 1, Some(kernels))?);
        for step in 0..3 {
            let (report, expected) = (several.step(f64::from(step))?, one.step(f64::from(step))?);
            assert_eq!(report.tokens, expected.tokens);
            assert!((report.loss - expected.loss).abs() < 1e-4, "{report:?} {expected:?}");
        }
        // A correction and a saved state reach all workers, or the next step would begin from two places.
        several.apply(Part::MODEL, &correction(several.layout(), 0.25))?;
        one.apply(Part::MODEL, &correction(one.layout(), 0.25))?;
        assert!((several.step(3.0)?.loss - one.step(3.0)?.loss).abs() < 1e-3);
        let saved = several.save()?;
        let mut again = engine(&narrow, 2, Some(kernels))?;
        again.restore(saved)?;
        assert_eq!(again.step(4.0)?, several.step(4.0)?);
    }
    Ok(())
}

#[test]
fn adapters_learn_while_their_base_stays() -> Result<(), TrainingError> {
    let mut manifest = manifest();
    let mut base = engine(&manifest);
    for step in 0..30 {
        base.step(f64::from(step))?;
    }
    let weights = base.parameters()?;
    manifest.lora.rank = 4;
    let on_base = |weights: Option<Vec<f32>>, kernels| {
        let options = TrainingOptions { kernels: Some(kernels), ..TrainingOptions::default() };
        Engine::on_base(&manifest, weights.map(Into::into), Corpus::grammar(), [1; 32], &[Device::Cpu], options)
    };
    assert!(matches!(on_base(None, Kernels::Fused), Err(TrainingError::BaseMissing)));
    assert!(matches!(on_base(Some(vec![0.0; 3]), Kernels::Fused), Err(TrainingError::WrongLength { actual: 3, .. })));
    let mut tuned = on_base(Some(weights.clone()), Kernels::Fused)?;
    let mut composed = on_base(Some(weights.clone()), Kernels::Composed)?;
    let before = tuned.validation_loss()?;
    assert!((before - base.validation_loss()?).abs() < 1e-9);
    for _ in 0..20 {
        let (one, other) = (tuned.step_at_rate(0.005)?, composed.step_at_rate(0.005)?);
        assert!((one.loss - other.loss).abs() < 1e-3, "{one:?} {other:?}");
    }
    let after = tuned.validation_loss()?;
    assert!(after < before - 0.01, "{before} to {after}");
    let merged = crate::model::lora::merge(base.layout(), &manifest.lora, &weights, &tuned.parameters()?);
    manifest.lora.rank = 0;
    let mut whole = on_base_all(&manifest, merged)?;
    assert!((whole.validation_loss()? - after).abs() < 1e-6);
    Ok(())
}

fn on_base_all(manifest: &RunManifest, weights: Vec<f32>) -> Result<Engine, TrainingError> {
    let options = TrainingOptions::default();
    Engine::on_base(manifest, Some(weights.into()), Corpus::grammar(), [1; 32], &[Device::Cpu], options)
}

#[test]
fn a_state_makes_a_weightless_engine_like_one_that_drew_its_weights() -> Result<(), TrainingError> {
    for outer_learning_rate in [0.0, 0.7] {
        let mut manifest = manifest();
        manifest.gossip.outer_learning_rate = outer_learning_rate;
        let mut drawn = engine(&manifest);
        let options = TrainingOptions { weightless: true, ..TrainingOptions::default() };
        let mut weightless = Engine::with_options(&manifest, Corpus::grammar(), [1; 32], Device::Cpu, options)?;
        assert!(weightless.parameters()?.iter().all(|value| *value == 0.0));
        let state = drawn.snapshot(Selection::State)?.values;
        weightless.load_state(&[state.to_payload()])?;
        drawn.load_state(&[state.to_payload()])?;
        drawn.step(1.0)?;
        weightless.step(1.0)?;
        assert_eq!(drawn.save()?, weightless.save()?);
    }
    Ok(())
}

/// An engine whose device is a GPU that the CPU emulates; `None` where it cannot.
fn engine_on_gpu(manifest: &RunManifest) -> Option<Engine> {
    let (mut engine, accelerator) = (engine(manifest), Emulated::open()?);
    let (layout, parameters) = (engine.layout().clone(), engine.parameters().expect("the CPU's"));
    let (optimizer, options) = (manifest.optimizer.clone(), TrainingOptions::default());
    let spec = manifest.model.transformer().expect("one");
    let replica =
        GpuReplica::new(accelerator, spec, Trained::all(spec, &layout), &parameters, optimizer, usize::MAX, &options);
    engine.replica = Box::new(replica.expect("memory"));
    Some(engine)
}

#[test]
fn on_a_gpu_copies_are_of_where_they_began_and_corrections_count_where_they_end() -> Result<(), TrainingError> {
    let manifest = manifest_of(TransformerModel { width: 16, feed_forward: 20, context: 12, ..small() });
    let Some(mut gpu) = engine_on_gpu(&manifest) else { return Ok(()) };
    let (mut cpu, model) = (engine(&manifest), Selection::Part(Part::MODEL));
    let close = |left: &[f32], right: &[f32]| left.iter().zip(right).all(|(left, right)| (left - right).abs() < 1e-3);

    let (begun, expected) = (gpu.begin_snapshot(model)?, cpu.snapshot(model)?);
    let correction = correction(cpu.layout(), 0.5);
    let coming = gpu.begin_correction(Part::MODEL, &correction)?;
    let losses = (gpu.step(100.0)?.loss, cpu.step(100.0)?.loss);
    assert!((losses.0 - losses.1).abs() < 1e-4, "{losses:?}");
    assert_eq!(gpu.finish_snapshot(begun)?.values.values(), expected.values.values());
    assert!(close(&gpu.parameters()?, &cpu.parameters()?), "nothing is added before its end");
    gpu.finish_correction(coming)?;
    cpu.apply(Part::MODEL, &correction)?;
    assert!(close(&gpu.parameters()?, &cpu.parameters()?));
    let (taken, expected) = (gpu.snapshot(model)?, cpu.snapshot(model)?);
    let moved = (taken.local_progress, expected.local_progress);
    assert!(moved.1 > 0.0 && (moved.0 / moved.1 - 1.0).abs() < 0.02, "a step, without the correction: {moved:?}");
    let mut other = engine_on_gpu(&manifest).expect("as above");
    other.restore(gpu.save()?)?;
    assert_eq!(other.snapshot(Selection::State)?.values.values(), gpu.snapshot(Selection::State)?.values.values());
    Ok(())
}

#[test]
#[should_panic(expected = "every correction that was ordered before it")]
fn a_copy_does_not_overtake_a_correction() {
    let mut engine = engine(&manifest());
    let correction = correction(engine.layout(), 0.5);
    let _under_way = engine.begin_correction(Part::MODEL, &correction).expect("it fits");
    let _copy = engine.begin_snapshot(Selection::State);
}

/// A copy is not written over while somebody holds it, and its memory is taken again once nobody does.
#[test]
fn the_memory_of_a_copy_is_used_again_when_nobody_holds_it() -> Result<(), TrainingError> {
    let mut engine = engine(&manifest());
    let copy = |engine: &mut Engine| -> Result<Snapshot, TrainingError> {
        Ok(engine.snapshot(Selection::Part(Part::MODEL))?.values)
    };
    let first = copy(&mut engine)?;
    let (held, place) = (first.values().to_vec(), first.values().as_ptr());
    engine.step(0.0)?;
    let second = copy(&mut engine)?;
    assert!(first.values() == held && second.values() != held && second.values().as_ptr() != place);
    let place = second.values().as_ptr();
    drop((first, second));
    engine.step(1.0)?;
    let third = copy(&mut engine)?;
    assert_eq!(third.values().as_ptr(), place);
    assert_eq!(third.values(), engine.parameters()?);
    Ok(())
}

/// A pipeline trains as one device does with the whole model, and its checkpoints are the same.
#[test]
fn an_engine_over_stages_trains_with_the_bits_of_one_device() -> Result<(), TrainingError> {
    [(false, None), (true, None), (true, Some(8))].into_iter().try_for_each(|(tied_head, base_bits)| {
        trains_over_stages(TransformerModel { layers: 3, tied_head, ..small() }, base_bits)
    })
}

fn trains_over_stages(model: TransformerModel, base_bits: Option<u32>) -> Result<(), TrainingError> {
    let mut manifest = manifest_of(model.clone());
    manifest.lora.rank = if base_bits.is_some() { 2 } else { 0 };
    manifest.lora.base_bits = base_bits.unwrap_or(32);
    let options = TrainingOptions { micro_batch: Some(2), ..TrainingOptions::default() };
    let base = || base_bits.map(|_| model::drawn_base(&manifest));
    let over = |manifest: &RunManifest, cuts: &[u32]| {
        let stage = |stage| StageOnDevice { device: Device::Cpu, stage };
        let stages: Vec<_> = model::StageSpec::cut(&model, cuts).into_iter().map(stage).collect();
        Engine::over_stages(manifest, base(), Corpus::grammar(), [1; 32], &stages, options)
    };
    let mut whole = Engine::on_base(&manifest, base(), Corpus::grammar(), [1; 32], &[Device::Cpu], options)?;
    let (mut cut, mut other) = (over(&manifest, &[1])?, over(&manifest, &[1, 2])?);
    assert_eq!(cut.layout().digest(), whole.layout().digest());
    for progress in [0.0, 1.0, 2.0] {
        let expected = whole.step(progress)?;
        assert_eq!(cut.step(progress)?, expected);
        let correction = correction(whole.layout(), 1e-4);
        whole.apply(Part::MODEL, &correction)?;
        cut.apply(Part::MODEL, &correction)?;
    }
    let saved = cut.save()?;
    assert_eq!(saved, whole.save()?);
    other.restore(saved)?;
    assert_eq!(other.step(3.0)?, whole.step(3.0)?);
    assert_eq!((other.evaluate()?, other.save()?), (whole.evaluate()?, whole.save()?));
    Ok(())
}
