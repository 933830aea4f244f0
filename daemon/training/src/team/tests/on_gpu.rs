//! Teams with GPUs: emulated ones, and in a build for them a real one.

use std::sync::Arc;

use super::*;
use crate::Precision;
use crate::gpu::emulated::Emulated;
use crate::gpu::tests::order::devices_and_order;
use crate::gpu::{Accelerator, Base, Frozen, GpuReplica, Trained};
use crate::model::lora::{initial_adapters, lora_layout};
use crate::model::{Model as _, StageSpec, Transformer, transformer_of};

/// Streams of one block's rows, and few tokens that are alike: what several blocks add to one place is added in any order.
fn on_gpu(has_adapters: bool) -> RunManifest {
    let mut manifest = manifest(has_adapters, OptimizerKind::AdamW);
    edit_model(&mut manifest, |model| (model.layers, model.context, model.vocabulary) = (3, 8, 300));
    manifest.optimizer.batch_sequences = 4;
    manifest
}

const OPTIONS: TrainingOptions = TrainingOptions {
    precision: Precision::F32,
    kernels: None,
    micro_batch: Some(1),
    recompute: false,
    moments_in_8_bits: false,
    weightless: false,
};

/// One GPU with all of the model.
fn one_gpu(manifest: &RunManifest, device: Arc<dyn Accelerator>) -> Engine {
    let model = Transformer::new(transformer_of(manifest));
    let stage = StageSpec::whole(transformer_of(manifest));
    let (trained, parameters) = match base(manifest) {
        Some(base) => {
            let frozen = Frozen::new(&*device, model.layout(), &base, &manifest.lora, Precision::F32.into());
            let layout = Arc::new(lora_layout(model.layout(), &manifest.lora));
            let parameters = initial_adapters(&layout, manifest.run.seed);
            (Trained { stage, layout, base: Base::Held(frozen.expect("memory")) }, parameters)
        }
        None => {
            let parameters = model.initial_parameters(manifest.run.seed);
            (Trained { stage, layout: model.layout().clone(), base: Base::None }, parameters)
        }
    };
    let optimizer = manifest.optimizer.clone();
    let replica = GpuReplica::new(device, transformer_of(manifest), trained, &parameters, optimizer, 1, &OPTIONS);
    let replica = Box::new(replica.expect("a replica"));
    Engine::around(manifest, Corpus::grammar(), [1; 32], replica, 1).expect("an engine")
}

/// As far apart as two devices' sums may be.
fn assert_close(found: &[StepReport], expected: &[StepReport], where_from: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found.loss - expected.loss).abs() < 1e-4, "{where_from}: {found:?} {expected:?}");
        let norms = found.gradient_norm / expected.gradient_norm;
        assert!((norms - 1.0).abs() < 1e-3, "{where_from}: {found:?} {expected:?}");
    }
}

fn on(manifest: &RunManifest, devices: [StageDevice; 2], helpers: u8) -> Setting {
    // A CPU has two lanes, of which a GPU makes one.
    let micro_batch = if devices[0].is_cpu() { Some(2) } else { OPTIONS.micro_batch };
    let options = TrainingOptions { micro_batch, ..OPTIONS };
    let (least, layer) = captain_needs(manifest, &options, (Wire::F32, 1, devices[0].kernels()));
    Setting { devices, options, memory: least + layer / 2, ..setting(helpers) }
}

#[test]
fn a_team_of_gpus_trains_with_the_bits_of_one_gpu_and_one_of_cpu_and_gpu_as_either_does() {
    let cases = devices_and_order()
        .into_iter()
        .flat_map(|(device, is_ordered)| [(device.clone(), is_ordered, false), (device, true, true)]);
    for (device, is_ordered, has_adapters) in cases {
        let (manifest, on_device) = (on_gpu(has_adapters), StageDevice::of_gpu(device.clone()));
        let mut whole = one_gpu(&manifest, device);
        let expected = stepped(&mut whole, 6);
        for (devices, helpers) in [
            ([on_device.clone(), on_device.clone()], 1),
            ([on_device.clone(), on_device.clone()], 2),
            ([StageDevice::CPU, on_device.clone()], 1),
            ([on_device.clone(), StageDevice::CPU], 2),
        ] {
            let all_alike = devices.iter().all(|device| !device.is_cpu());
            let (mut engine, team) = Team::begin(&manifest, base(&manifest), on(&manifest, devices, helpers));
            let found = stepped(&mut engine, 6);
            let where_from = format!("{has_adapters} {all_alike} {:?}", team.layers());
            assert_eq!(team.layers().iter().filter(|(who, _)| who.is_some()).count(), usize::from(helpers));
            assert_close(&found, &expected, &where_from);
            if all_alike && is_ordered {
                assert_eq!(found, expected, "{where_from}");
                assert_same(engine.save().expect("a state"), whole.save().expect("a state"), &where_from);
            }
        }
    }
}

/// Embedding and head, and places for sums, which are nothing beside a real model.
#[test]
fn a_captain_s_gpu_takes_what_is_reckoned_with() {
    for has_adapters in [false, true] {
        let Some(device) = Emulated::open() else { return };
        let (manifest, on_device) = (on_gpu(has_adapters), StageDevice::of_gpu(device.clone()));
        let setting = on(&manifest, [on_device, StageDevice::CPU], 2);
        let (mut engine, _team) = Team::begin(&manifest, base(&manifest), setting);
        stepped(&mut engine, 1);
        let (least, _) = captain_needs(&manifest, &OPTIONS, (Wire::F32, 1, Kernels::Cuda));
        let ratio = device.allocated() as f64 / least as f64;
        assert!((0.95..1.15).contains(&ratio), "{ratio}");
    }
}

#[test]
fn a_team_of_gpus_trains_a_tied_head_as_one_gpu_does_and_goes_on_when_a_helper_is_killed() {
    let cases = devices_and_order()
        .into_iter()
        .flat_map(|(device, is_ordered)| [(device.clone(), is_ordered, false), (device, is_ordered, true)]);
    for (device, is_ordered, has_adapters) in cases {
        let (mut manifest, on_device) = (on_gpu(has_adapters), StageDevice::of_gpu(device.clone()));
        edit_model(&mut manifest, |model| model.tied_head = true);
        let mut whole = one_gpu(&manifest, device);
        let expected = [stepped(&mut whole, 4), stepped(&mut whole, 4)].concat();
        let (mut engine, mut team) =
            Team::begin(&manifest, base(&manifest), on(&manifest, [on_device.clone(), on_device], 1));
        let mut found = stepped(&mut engine, 4);
        // With all weights this is a copy: nothing is lost then.
        engine.save().expect("a state");
        team.kill(1);
        team.help(2, OPTIONS, None);
        found.extend(stepped(&mut engine, 4));
        assert!(team.layers().iter().any(|(who, _)| *who == Some(peer(2))), "{:?}", team.layers());
        assert_close(&found, &expected, &format!("with adapters: {has_adapters}"));
        assert!(!is_ordered || found == expected, "with adapters: {has_adapters}");
    }
}
