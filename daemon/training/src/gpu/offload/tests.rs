//! A model that is offloaded against one that the GPU holds: bit for bit, and in less memory.

mod adapters;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::Error;
use murmur_protocol::manifest::OptimizerKind;

use super::*;
use crate::engine::options::{Precision, TrainingOptions};
use crate::gpu::emulated::Emulated;
use crate::gpu::sizes::in_production;
use crate::gpu::tests::order::{assert_alike, assert_moments_alike, assert_number_alike, devices_and_order};
use crate::gpu::tests::{batch, specs};
use crate::gpu::{Argument, GpuReplica, Product, Span, Trained, Write};
use crate::model::{Model as _, StageSpec, Transformer};

/// A norm that clips every step: one wrong bit of it would be in every parameter.
fn optimizer(kind: OptimizerKind, match_batch: bool) -> OptimizerSpec {
    OptimizerSpec { kind, match_batch, gradient_norm_max: 0.1, ..OptimizerSpec::default() }
}

fn resident(
    device: &Arc<dyn Accelerator>,
    spec: &TransformerModel,
    optimizer: &OptimizerSpec,
    (micro_batch, precision): (usize, Precision),
) -> Result<GpuReplica> {
    let model = Transformer::new(spec);
    let options = TrainingOptions { precision, ..TrainingOptions::default() };
    let (trained, parameters) = (Trained::all(spec, model.layout()), model.initial_parameters(1));
    GpuReplica::new(device.clone(), spec, trained, &parameters, optimizer.clone(), micro_batch, &options)
}

fn offloaded(
    device: &Arc<dyn Accelerator>,
    spec: &TransformerModel,
    optimizer: &OptimizerSpec,
    (micro_batch, precision): (usize, Precision),
) -> Result<Offloaded> {
    let model = Transformer::new(spec);
    let (layout, parameters) = (model.layout().clone(), model.initial_parameters(1));
    Offloaded::new(device.clone(), spec, layout, &parameters, optimizer.clone(), (micro_batch, precision.into()))
}

/// Some steps of both: losses, gradients, norms, parameters and moments.
fn compare(
    is_ordered: bool,
    resident: &mut GpuReplica,
    offloaded: &mut Offloaded,
    spec: &TransformerModel,
    what: &str,
) -> Result<()> {
    resident.set_members(3.0);
    offloaded.set_members(3.0);
    for step in 0..3 {
        // The last microbatch is a smaller one, and the last batch has one alone.
        let batch = batch(spec, [5, 4, 1][step as usize], step);
        let (found, expected) = (offloaded.compute_gradient(&batch)?, resident.compute_gradient(&batch)?);
        assert_number_alike(is_ordered, found, expected, &format!("loss, {what}"));
        let of_step = |vector: &str| format!("{vector} of step {step}, {what}");
        assert_alike(is_ordered, &offloaded.gradient()?, &resident.gradient()?, &of_step("gradient"));
        let norm = resident.gradient_norm()?;
        assert_number_alike(is_ordered, offloaded.gradient_norm()?, norm, &of_step("norm"));
        assert!(norm > 0.1, "it is clipped: {norm}");
        resident.step(norm, 0.01)?;
        offloaded.step(norm, 0.01)?;
        assert_alike(is_ordered, &offloaded.parameters()?, &resident.parameters()?, &of_step("parameters"));
        let ((found, steps), (expected, expected_steps)) = (offloaded.moments()?, resident.moments()?);
        assert_moments_alike(is_ordered, &found, &expected, &of_step("moments"));
        assert_eq!(steps, expected_steps, "{what}");
    }
    Ok(())
}

#[test]
fn an_offloaded_model_trains_with_the_bits_of_one_that_the_gpu_holds() -> Result<()> {
    let [plain, tied, _, qwen, smol] = specs();
    let deep = TransformerModel { layers: 3, ..plain.clone() };
    let (adamw, muon) = (OptimizerKind::AdamW, OptimizerKind::Muon);
    for (device, is_ordered) in devices_and_order() {
        for (spec, kind, match_batch, micro_batch, precision) in [
            (&plain, adamw, false, 5, Precision::F32),
            (&deep, adamw, false, 3, Precision::F32),
            (&deep, adamw, true, 1, Precision::Bf16),
            (&qwen, muon, false, 2, Precision::Bf16),
            (&smol, muon, true, 2, Precision::F32),
            (&tied, adamw, false, 2, Precision::F32),
            (&tied, muon, true, 1, Precision::Bf16),
        ] {
            let what = format!("{} layers, {kind:?}, {micro_batch} at once, {precision:?}", spec.layers);
            let by = optimizer(kind, match_batch);
            let way = (micro_batch, precision);
            let (mut resident, mut offloaded) =
                (resident(&device, spec, &by, way)?, offloaded(&device, spec, &by, way)?);
            compare(is_ordered, &mut resident, &mut offloaded, spec, &what)?;
            let batch = batch(spec, 5, 9);
            let (found, expected) = (offloaded.evaluate(&batch)?, resident.evaluate(&batch)?);
            assert_number_alike(is_ordered, found.loss_sum, expected.loss_sum, &what);
            assert!(!is_ordered || found == expected, "{what}");
        }
    }
    Ok(())
}

/// As synchronous members, restarts and exchanges do; copies are of the moment at which they began.
#[test]
fn what_is_put_into_an_offloaded_model_is_what_it_goes_on_with() -> Result<()> {
    let spec = &specs()[0];
    for (device, is_ordered) in devices_and_order() {
        let by = optimizer(OptimizerKind::AdamW, true);
        let way = (2, Precision::Bf16);
        let (mut resident, mut offloaded) = (resident(&device, spec, &by, way)?, offloaded(&device, spec, &by, way)?);
        resident.compute_gradient(&batch(spec, 3, 1))?;
        let norm = resident.gradient_norm()?;
        offloaded.set_gradient(&resident.gradient()?)?;
        assert_eq!(offloaded.gradient_norm()?, norm);
        let (copy, before) = (offloaded.begin_copy()?.expect("it copies beside"), offloaded.parameters()?.into_owned());
        resident.step(norm, 0.01)?;
        offloaded.step(norm, 0.01)?;
        assert!(offloaded.parameters()? == resident.parameters()?);
        assert!(copy.wait()? == before && before != *offloaded.parameters()?);
        // Weights that are on the GPU already are not those that count.
        offloaded.compute_gradient(&batch(spec, 3, 2))?;
        let edit = &mut |values: &mut [f32]| values.iter_mut().for_each(|value| *value *= 1.25);
        resident.edit_parameters(edit)?;
        offloaded.edit_parameters(edit)?;
        let (moments, _) = resident.moments()?;
        let moments = Moments { first: moments.first.iter().map(|value| -value).collect(), ..moments };
        resident.set_moments(moments.clone(), 7)?;
        offloaded.set_moments(moments, 7)?;
        compare(is_ordered, &mut resident, &mut offloaded, spec, "after all was put in")?;
    }
    Ok(())
}

/// The most bytes that a GPU held during a step of four sequences, two at a time.
pub(super) fn peak_of(
    replica: impl FnOnce(&Arc<dyn Accelerator>) -> Result<Box<dyn Replica>>,
    spec: &TransformerModel,
) -> Option<usize> {
    let emulated = Emulated::open()?;
    let device: Arc<dyn Accelerator> = emulated.clone();
    let mut replica = replica(&device).expect("a replica");
    replica.compute_gradient(&batch(spec, 4, 1)).expect("a gradient");
    replica.step(1.0, 0.01).expect("a step");
    Some(emulated.peak())
}

/// However many layers there are, the GPU holds two of them.
#[test]
fn an_offloaded_model_takes_the_memory_that_is_estimated_whatever_its_layers() {
    let (adamw, muon) = (OptimizerKind::AdamW, OptimizerKind::Muon);
    for (kind, precision, tied_head) in
        [(adamw, Precision::F32, false), (muon, Precision::Bf16, false), (adamw, Precision::Bf16, true)]
    {
        let (by, way) = (optimizer(kind, false), (2, precision));
        let mut peaks = Vec::new();
        for layers in [4, 12] {
            let size = TransformerModel { layers, width: 64, feed_forward: 96, vocabulary: 100, ..specs()[0].clone() };
            let spec = TransformerModel { tied_head, ..size };
            let boxed = |device: &_| Ok(Box::new(offloaded(device, &spec, &by, way)?) as Box<dyn Replica>);
            let Some(peak) = peak_of(boxed, &spec) else { return };
            let layout = stage_layout(&spec, &StageSpec::whole(&spec));
            let DeviceValues { weights, gradients, activations, .. } =
                DeviceValues::of(&spec, &layout, &by, (4, way.0, way.1));
            let estimate = 4 * (weights + gradients + activations);
            assert!(peak <= estimate && 10 * peak > 8 * estimate, "{layers} layers: {peak} of {estimate}");
            let boxed = |device: &_| Ok(Box::new(resident(device, &spec, &by, way)?) as Box<dyn Replica>);
            let of_resident = peak_of(boxed, &spec).expect("there is an emulator");
            assert!(layers == 4 || 2 * peak < of_resident, "{peak} of {of_resident}");
            peaks.push(peak);
        }
        assert!(10 * peaks[1] < 11 * peaks[0], "three times the layers take no more: {peaks:?}");
    }
}

/// Two pieces that were stepped may leave at once, and they may have more values than a stage: as work is cut outside of tests, and
/// with downloads that stay under way longer than a piece is stepped.
#[test]
fn stepping_takes_no_more_memory_than_is_estimated_while_two_pieces_leave() {
    in_production(|| {
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            let (by, way) = (optimizer(kind, true), (2, Precision::F32));
            let size =
                TransformerModel { layers: 4, width: 64, feed_forward: 96, vocabulary: 20, ..specs()[0].clone() };
            let Some(emulated) = Emulated::slow(Duration::from_millis(30)) else { return };
            let device: Arc<dyn Accelerator> = emulated.clone();
            let mut replica = offloaded(&device, &size, &by, way).expect("a replica");
            replica.compute_gradient(&batch(&size, 2, 1)).expect("a gradient");
            replica.step(1.0, 0.01).expect("a step");
            let layout = stage_layout(&size, &StageSpec::whole(&size));
            let DeviceValues { weights, gradients, activations, .. } =
                DeviceValues::of(&size, &layout, &by, (2, way.0, way.1));
            let (peak, estimate) = (emulated.peak(), 4 * (weights + gradients + activations));
            assert!(peak <= estimate && 10 * peak > 8 * estimate, "{kind:?}: {peak} of {estimate}");
        }
    });
}

/// A GPU that fails at one transfer of all. What it uploads shortly before takes its time: it is still under way when the next batch
/// begins.
struct Failing {
    device: Arc<dyn Accelerator>,
    transfers_left: AtomicUsize,
}

/// Such uploads, and how long they take.
const SLOW: (usize, Duration) = (4, Duration::from_millis(20));

impl Failing {
    fn transfer(&self) -> Result<()> {
        let failed = self.transfers_left.fetch_sub(1, Ordering::Relaxed) == 0;
        if failed { Err(Error::Msg("out of memory".to_owned())) } else { Ok(()) }
    }
}

impl Accelerator for Failing {
    fn allocate(&self, kind: Kind, values: usize) -> Result<Memory> {
        self.device.allocate(kind, values)
    }

    fn launch(&self, kernel: &str, blocks: usize, arguments: &[Argument]) -> Result<()> {
        self.device.launch(kernel, blocks, arguments)
    }

    fn multiply(&self, product: &Product) -> Result<()> {
        self.device.multiply(product)
    }

    fn clear(&self, place: Span) -> Result<()> {
        self.device.clear(place)
    }

    fn copy(&self, from: Span, to: Span) -> Result<()> {
        self.device.copy(from, to)
    }

    fn upload(&self, values: &[u8], to: Span) -> Result<()> {
        self.transfer()?;
        self.device.upload(values, to)
    }

    fn download(&self, from: Span, to: &mut [u8]) -> Result<()> {
        self.transfer()?;
        self.device.download(from, to)
    }

    fn wait(&self) -> Result<()> {
        self.device.wait()
    }

    fn begin_download(&self, from: Span) -> Result<Transfer<Vec<f32>>> {
        self.transfer()?;
        self.device.begin_download(from)
    }

    fn begin_upload(&self, write: Write, values: usize, to: Arc<Memory>) -> Result<Transfer<Vec<f32>>> {
        let is_slow = self.transfers_left.load(Ordering::Relaxed) < SLOW.0;
        self.transfer()?;
        let slowly = move |place: &mut [f32]| {
            if is_slow {
                std::thread::sleep(SLOW.1);
            }
            write(place)
        };
        self.device.begin_upload(Box::new(slowly), values, to)
    }
}

#[test]
fn a_batch_that_fails_leaves_nothing_to_the_next() -> Result<()> {
    let [plain, tied, ..] = specs();
    let (by, way) = (optimizer(OptimizerKind::AdamW, false), (1, Precision::F32));
    let cases = devices_and_order().into_iter().flat_map(|device| [(device.clone(), &plain), (device, &tied)]);
    for ((device, is_ordered), spec) in cases {
        // Two of its blocks have one slot.
        let spec = &TransformerModel { layers: 3, ..spec.clone() };
        let mut resident = resident(&device, spec, &by, way)?;
        let expected = resident.compute_gradient(&batch(spec, 2, 1))?;
        let mut failures = 0;
        for transfers in (0..).step_by(2) {
            let failing = Arc::new(Failing { device: device.clone(), transfers_left: AtomicUsize::new(usize::MAX) });
            let as_device: Arc<dyn Accelerator> = failing.clone();
            let mut offloaded = offloaded(&as_device, spec, &by, way)?;
            failing.transfers_left.store(transfers, Ordering::Relaxed);
            let Err(error) = offloaded.compute_gradient(&batch(spec, 2, 3)) else { break };
            assert!(error.to_string().contains("out of memory"), "{error}");
            failures += 1;
            let what = format!("transfer {transfers} fails");
            assert_number_alike(is_ordered, offloaded.compute_gradient(&batch(spec, 2, 1))?, expected, &what);
            assert_alike(is_ordered, &offloaded.gradient()?, &resident.gradient()?, &what);
        }
        assert!(failures > 20, "{failures}");
    }
    Ok(())
}
