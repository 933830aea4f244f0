//! What private steps do with gradients, and what they refuse.

use candle_core::Device;
use murmur_protocol::manifest::{DataSource, LoraSpec, MlpModel, TransformerModel};
use murmur_protocol::random::{RngExt, stream};

use super::*;
use crate::engine::{Engine, TrainingError, TrainingOptions};
use crate::model;
use crate::replica::HostReplica;
use crate::{DataPlace, TrainingError as Failed};

/// Private steps that promise nothing and change nothing.
const OPEN: PrivateSteps = PrivateSteps { clip: 1e9, noise: 0.0 };

fn key() -> SecretKey {
    SecretKey::new([9; 32])
}

fn text_manifest() -> RunManifest {
    let model =
        TransformerModel { layers: 2, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    (manifest.data.source, manifest.data.validation_fraction) = (DataSource::Files, 0.2);
    manifest.optimizer.batch_sequences = 6;
    manifest
}

/// Six windows of 17 bytes to train on, and one that is held out.
fn text() -> Corpus {
    let mut draws = stream(1, "text", &[]);
    let bytes = (0..130).map(|_| draws.random_range(97..123_u32) as u8).collect();
    Corpus::from_bytes(bytes, &text_manifest().data, 16).expect("long enough")
}

fn image_manifest() -> RunManifest {
    let model = MlpModel { classes: 5, hidden: vec![12], ..MlpModel::default() };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    (manifest.data.source, manifest.data.shift_pixels) = (DataSource::Idx, 0);
    manifest.optimizer.batch_sequences = 40;
    manifest
}

fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).fold(0.0, |largest, (one, other)| largest.max((one - other).abs()))
}

#[test]
fn each_gradient_is_clipped_to_the_norm_and_a_broken_one_adds_nothing() {
    let mut draws = stream(2, "gradients", &[]);
    for clip in [1e-3, 1.0, 7.0] {
        for _ in 0..200 {
            let size = 10.0_f64.powi(draws.random_range(-4..6_i32)) * clip;
            let gradient: Vec<f32> = (0..500).map(|_| (size * (secret::uniform(&mut draws) - 0.5)) as f32).collect();
            let mut sum = vec![0.0; 500];
            add_clipped(&mut sum, &gradient, clip);
            let (before, after) = (norm(&gradient), norm(&sum));
            assert!(after <= clip && after > 0.999 * clip.min(before), "{before} became {after}");
            if before <= clip {
                assert_eq!(sum, gradient);
            }
        }
    }
    for broken in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut sum = vec![0.5; 3];
        add_clipped(&mut sum, &[1.0, broken, 1.0], 1.0);
        assert!(norm(&sum).is_finite(), "{broken}: {sum:?}");
    }
}

#[test]
fn each_record_of_a_model_adds_no_more_than_the_clip_norm() -> Result<()> {
    let (manifest, corpus) = (text_manifest(), text());
    let (model, parameters) = model::begin(&manifest, None, false).expect("no base is needed");
    let mut replica = HostReplica::new(model, parameters, manifest.optimizer.clone(), 8);
    let records = Records::of(&manifest, &corpus).expect("text");
    let clip = 0.1;
    for number in 0..records.count() {
        let example = records.example(&corpus, number, &mut key().augmentation(0, number)).expect("a window");
        replica.compute_gradient(&example)?;
        let (gradient, mut sum) = (replica.gradient()?, vec![0.0; replica.layout().parameters()]);
        assert!(norm(&gradient) > 2.0 * clip, "clipping has something to do");
        add_clipped(&mut sum, &gradient, clip);
        assert!(norm(&sum) <= clip);
    }
    Ok(())
}

#[test]
fn without_noise_and_clipping_the_gradient_is_that_of_the_batch_for_texts_and_adapters() -> Result<()> {
    let mut adapted = text_manifest();
    adapted.lora = LoraSpec {
        rank: 2,
        alpha: 4.0,
        targets: vec!["q_proj".to_owned(), "v_proj".to_owned()],
        ..LoraSpec::default()
    };
    for manifest in [text_manifest(), adapted] {
        let corpus = text();
        let base = model::build(&manifest.model).initial_parameters(3);
        let (model, parameters) = model::begin(&manifest, Some(base.into()), false).expect("a base");
        let mut replica = HostReplica::new(model, parameters, manifest.optimizer.clone(), 8);
        let mut private = PrivateTraining::new(&manifest, &corpus, OPEN, key()).expect("text");
        let private_loss =
            private.compute_gradient(&mut replica, &corpus, &mut |replica, record| replica.compute_gradient(record))?;
        let actual = replica.gradient()?.into_owned();
        let windows: Vec<Vec<u32>> =
            (0..6).map(|number| corpus.read(17 * number..17 * number + 17).expect("there")).collect();
        let loss = replica.compute_gradient(&crate::data::Batch::of(&windows))?;
        let expected = replica.gradient()?;
        assert!((loss - private_loss).abs() < 1e-5 && norm(&expected) > 1e-3);
        assert!(largest_difference(&actual, &expected) < 1e-6);
    }
    Ok(())
}

#[test]
fn the_sum_is_divided_by_the_batch_and_not_by_how_many_were_taken() -> Result<()> {
    let (mut manifest, corpus) = (text_manifest(), text());
    manifest.optimizer.batch_sequences = 2;
    let (model, parameters) = model::begin(&manifest, None, false).expect("no base is needed");
    let mut replica = HostReplica::new(model, parameters, manifest.optimizer.clone(), 8);
    let mut private = PrivateTraining::new(&manifest, &corpus, OPEN, key()).expect("text");
    let mut sizes = Vec::new();
    for step in 0..6 {
        private.compute_gradient(&mut replica, &corpus, &mut |replica, record| replica.compute_gradient(record))?;
        let actual = replica.gradient()?.into_owned();
        let taken = key().sample(step, 6, 1.0 / 3.0);
        let mut expected = vec![0.0; actual.len()];
        for number in &taken {
            let window = corpus.read(17 * *number as usize..17 * *number as usize + 17).expect("there");
            replica.compute_gradient(&crate::data::Batch::of(&[window]))?;
            expected.iter_mut().zip(replica.gradient()?.iter()).for_each(|(sum, value)| *sum += value / 2.0);
        }
        assert!(largest_difference(&actual, &expected) < 1e-6, "step {step} took {taken:?}");
        sizes.push(taken.len());
    }
    assert!(sizes.iter().any(|size| ![0, 2].contains(size)), "{sizes:?}");
    Ok(())
}

#[test]
fn without_noise_and_clipping_training_is_as_without_privacy() -> std::result::Result<(), TrainingError> {
    let manifest = image_manifest();
    let engine = || Engine::new(&manifest, Corpus::made_up(&manifest), [1; 32], Device::Cpu);
    let (mut open, mut private) = (engine()?, engine()?);
    let mechanism = private.begin_private(OPEN, key()).expect("images");
    assert_eq!((mechanism.records, mechanism.probability()), (40, 1.0));
    private.permit(5);
    for _ in 0..5 {
        let (report, expected) = (private.step_at_rate(1e-3)?, open.step_at_rate(1e-3)?);
        assert!((report.loss - expected.loss).abs() < 1e-5 && report.tokens == expected.tokens);
        assert!(largest_difference(&private.parameters()?, &open.parameters()?) < 1e-6);
    }
    let before = engine()?.parameters()?;
    assert!(largest_difference(&before, &private.parameters()?) > 1e-3, "it has trained");
    Ok(())
}

#[test]
fn no_step_is_taken_without_a_permit_and_each_needs_one() -> std::result::Result<(), TrainingError> {
    let manifest = image_manifest();
    let mut engine = Engine::new(&manifest, Corpus::made_up(&manifest), [1; 32], Device::Cpu)?;
    assert_eq!(engine.permits(), None);
    engine.train_privately(PrivateSteps { clip: 1.0, noise: 1.0 }, key()).expect("images");
    let before = engine.parameters()?;
    assert!(matches!(engine.step(0.0), Err(Failed::NoPermit)));
    assert!(matches!(engine.gradient_of_next_batch(), Err(Failed::NoPermit)));
    assert_eq!(engine.parameters()?, before);
    engine.permit(2);
    assert_eq!(engine.permits(), Some(2));
    engine.step(0.0)?;
    engine.step(1.0)?;
    assert!(matches!(engine.step(2.0), Err(Failed::NoPermit)));
    assert_eq!((engine.steps(), engine.permits()), (2, Some(0)));
    Ok(())
}

#[test]
fn steps_that_took_no_record_or_met_a_broken_one_are_steps_like_others() -> std::result::Result<(), TrainingError> {
    let manifest = image_manifest();
    let mut engine = Engine::new(&manifest, Corpus::made_up(&manifest), [1; 32], Device::Cpu)?;
    let mut state = engine.save()?;
    state.parameters.fill(f32::MAX);
    engine.restore(state)?;
    assert!(matches!(engine.step(0.0), Err(Failed::NotFinite { .. })), "it would be skipped");
    engine.train_privately(PrivateSteps { clip: 1.0, noise: 1.0 }, key()).expect("images");
    engine.permit(1);
    let report = engine.step(0.0)?;
    assert!(!report.loss.is_finite() && report.gradient_norm > 0.0 && report.tokens == 40);
    Ok(())
}

#[test]
fn a_record_is_one_text_cut_to_the_context() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("texts.jsonl");
    // Texts that are alike are held out together: all of these are unlike, but for those without a letter.
    let text = |number: usize| match number % 4 {
        0 => String::new(),
        times => format!("a{number:09}{}", "abcdefghij".repeat(times - 1)),
    };
    let line = |number: usize| format!("{{\"text\": \"{}\"}}\n", text(number));
    std::fs::write(&path, (0..400).map(line).collect::<String>()).expect("written");
    let mut manifest = text_manifest();
    (manifest.data.source, manifest.data.separator) = (DataSource::JsonLines, "|".to_owned());
    let place = DataPlace::of_files(&[path]);
    // By some seeds those without a letter are trained on, by the others they are held out.
    let by_seed = |seed| {
        manifest.run.seed = seed;
        let corpus = Corpus::open(&manifest, &place).expect("texts");
        Records::of(&manifest, &corpus).ok().filter(|records| records.count() > 290).map(|records| (corpus, records))
    };
    let (corpus, records) = (0..20).find_map(by_seed).expect("some");
    assert!((310..370).contains(&records.count()), "some are held out: {}", records.count());
    let example = |number| records.example(&corpus, number, &mut key().augmentation(0, number));
    let lengths: Vec<usize> =
        (0..records.count()).map(|number| example(number).map_or(0, |text| text.predictions())).collect();
    for expected in [0, 10, 16] {
        assert!(lengths.contains(&expected), "{expected} of {lengths:?}");
    }
    assert!(lengths.iter().all(|length| [0, 10, 16].contains(length)), "{lengths:?}");
    let texts = (0..records.count()).filter_map(example);
    assert!(
        texts.into_iter().all(|text| text.tokens().expect("text").inputs[0] == u32::from(b'a')),
        "each from its beginning"
    );
}

#[test]
fn windows_of_plain_text_share_no_byte() {
    let (manifest, corpus) = (text_manifest(), text());
    let records = Records::of(&manifest, &corpus).expect("text");
    assert_eq!((records.count(), records.predictions()), (6, 16));
    let window = |number| records.example(&corpus, number, &mut key().augmentation(0, number)).expect("a window");
    let read = |batch: &crate::data::Batch| {
        let tokens = batch.tokens().expect("text").clone();
        [tokens.inputs, vec![*tokens.targets.last().expect("one")]].concat()
    };
    let all: Vec<u32> = (0..6).flat_map(|number| read(&window(number))).collect();
    assert_eq!(all, corpus.read(0..102).expect("there"));
}

#[test]
fn what_cannot_be_private_is_refused_in_a_line() {
    let refused = |manifest: &RunManifest, corpus: &Corpus| {
        let steps = PrivateSteps { clip: 1.0, noise: 1.0 };
        PrivateTraining::new(manifest, corpus, steps, key()).err().expect("refused")
    };
    assert_eq!(refused(&RunManifest::default(), &Corpus::grammar()), NotPrivate::MadeUp);
    let edited = |edit: fn(&mut RunManifest)| {
        let mut manifest = text_manifest();
        edit(&mut manifest);
        refused(&manifest, &text())
    };
    assert_eq!(edited(|manifest| manifest.data.share = true), NotPrivate::Shared);
    assert_eq!(edited(|manifest| manifest.data.digest = "00".to_owned()), NotPrivate::Digest);
    assert_eq!(edited(|manifest| manifest.data.label_skew = 0.5), NotPrivate::LabelSkew);
    let few = edited(|manifest| manifest.optimizer.batch_sequences = 7);
    assert_eq!(few, NotPrivate::TooFewRecords { records: 6, batch: 7 });
    let manifest = image_manifest();
    let on = |devices: &[Device], steps| {
        let corpus = Corpus::made_up(&manifest);
        let mut engine =
            Engine::on_base(&manifest, None, corpus, [1; 32], devices, TrainingOptions::default()).expect("an engine");
        engine.train_privately(steps, key())
    };
    let steps = PrivateSteps { clip: 1.0, noise: 1.0 };
    assert_eq!(on(&[Device::Cpu, Device::Cpu], steps), Err(NotPrivate::Device));
    assert!(on(&[Device::Cpu], steps).is_ok());
    for (clip, noise) in [(1.0, 0.0), (0.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0)] {
        assert_eq!(on(&[Device::Cpu], PrivateSteps { clip, noise }), Err(NotPrivate::NoNoise));
    }
}
