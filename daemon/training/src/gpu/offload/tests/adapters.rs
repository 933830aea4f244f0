//! Adapters beside a base that is offloaded against adapters beside one that the GPU holds.

use murmur_protocol::manifest::{LORA_TARGETS, LoraSpec};

use super::*;
use crate::gpu::{Base, Frozen, Kind, frozen_bytes, passing_base_bytes, passing_values};
use crate::model::lora::lora_layout;
use crate::ops::base_weights::BaseWeights;
use crate::ops::gradient_check::random_values;

/// A replica whose base is held or comes by turns.
fn adapters(
    device: &Arc<dyn Accelerator>,
    spec: &TransformerModel,
    lora: &LoraSpec,
    (micro_batch, precision): (usize, Precision),
    is_offloaded: bool,
) -> Result<GpuReplica> {
    let (model, kind) = (Transformer::new(spec), Kind::from(precision));
    let weights = BaseWeights::from(model.initial_parameters(1)).in_bits(model.layout(), lora.base_bits);
    let base = if is_offloaded {
        Base::InTurns(Box::new(BaseInTurns::new(device, spec, weights, lora, (micro_batch, kind))?))
    } else {
        Base::Held(Frozen::new(&**device, model.layout(), &weights, lora, kind)?)
    };
    let layout = Arc::new(lora_layout(model.layout(), lora));
    // Where B is zero, A has no gradient.
    let mut parameters = random_values(layout.parameters(), 4);
    parameters.iter_mut().for_each(|value| *value *= 0.2);
    let trained = Trained { stage: StageSpec::whole(spec), layout, base };
    let options = TrainingOptions { precision, ..TrainingOptions::default() };
    let optimizer = optimizer(OptimizerKind::AdamW, false);
    GpuReplica::new(device.clone(), spec, trained, &parameters, optimizer, micro_batch, &options)
}

#[test]
fn adapters_beside_an_offloaded_base_train_with_the_bits_of_one_that_the_gpu_holds() -> Result<()> {
    let [plain, tied, _, qwen, smol] = specs();
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    for (device, is_ordered) in devices_and_order() {
        for (spec, base_bits, micro_batch, precision) in [
            (&plain, 32, 5, f32),
            (&tied, 32, 2, bf16),
            (&tied, 16, 2, f32),
            (&qwen, 16, 1, bf16),
            (&smol, 8, 2, f32),
            (&tied, 8, 3, bf16),
        ] {
            let what = format!("tied: {}, {base_bits} bits, {micro_batch} at once, {precision:?}", spec.tied_head);
            let targets = LORA_TARGETS.map(str::to_owned).to_vec();
            let (lora, way) =
                (LoraSpec { rank: 3, targets, base_bits, ..LoraSpec::default() }, (micro_batch, precision));
            let mut held = adapters(&device, spec, &lora, way, false)?;
            let mut offloaded = adapters(&device, spec, &lora, way, true)?;
            for step in 0..3 {
                let batch = batch(spec, [5, 4, 1][step as usize], step);
                let (found, expected) = (offloaded.compute_gradient(&batch)?, held.compute_gradient(&batch)?);
                let of_step = |vector: &str| format!("{vector} of step {step}, {what}");
                assert_number_alike(is_ordered, found, expected, &of_step("loss"));
                assert_alike(is_ordered, &offloaded.gradient()?, &held.gradient()?, &of_step("gradient"));
                let norm = held.gradient_norm()?;
                assert!(norm > 0.1, "{what}: {norm}");
                held.step(norm, 0.01)?;
                offloaded.step(norm, 0.01)?;
                assert_alike(is_ordered, &offloaded.parameters()?, &held.parameters()?, &of_step("parameters"));
            }
            let batch = batch(spec, 5, 9);
            let (found, expected) = (offloaded.evaluate(&batch)?, held.evaluate(&batch)?);
            assert_number_alike(is_ordered, found.loss_sum, expected.loss_sum, &what);
            assert!(!is_ordered || found == expected, "{what}");
        }
    }
    Ok(())
}

#[test]
fn a_base_that_is_offloaded_takes_the_memory_that_is_estimated_whatever_its_layers() {
    for (base_bits, precision) in [(32, Precision::F32), (16, Precision::Bf16), (8, Precision::Bf16)] {
        let (lora, way) = (LoraSpec { rank: 2, base_bits, ..LoraSpec::default() }, (2, precision));
        let mut of_bases = Vec::new();
        for layers in [4, 12] {
            let spec = TransformerModel { layers, width: 64, feed_forward: 96, vocabulary: 100, ..specs()[0].clone() };
            let peaks = [true, false].map(|is_offloaded| {
                let boxed = |device: &_| {
                    let replica = adapters(device, &spec, &lora, way, is_offloaded)?;
                    Ok(Box::new(replica) as Box<dyn Replica>)
                };
                peak_of(boxed, &spec)
            });
            let [Some(offloaded), Some(held)] = peaks else { return };
            let layout = stage_layout(&spec, &StageSpec::whole(&spec));
            let (of_base, _) = passing_base_bytes(&spec, precision.into(), &lora);
            // Adapters in 32 bits and as products read them, their gradient and two moments.
            let trained = lora_layout(&layout, &lora);
            let rounded = if precision == Precision::F32 { 0 } else { trained.parameters().div_ceil(2) };
            let sums = trained.tensors().len() * SUM_BLOCKS * 2;
            let values = 4 * trained.parameters() + rounded + sums + passing_values(&spec, way, 2);
            let estimate = of_base + 4 * values;
            assert!(offloaded <= estimate && 10 * offloaded > 9 * estimate, "{offloaded} of {estimate}");
            let of_held = frozen_bytes(&layout, precision.into(), &lora);
            assert!(layers == 4 || (2 * of_base < of_held && offloaded < held), "{of_base} of {of_held}");
            of_bases.push(of_base);
        }
        assert_eq!(of_bases[0], of_bases[1], "three times the layers take no more");
    }
}
