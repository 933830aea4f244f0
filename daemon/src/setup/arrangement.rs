//! How the devices of a node train one model: each with all of it, each with some of its layers, or one with layer after layer.

use murmur_protocol::RunManifest;
use murmur_training::measure::timed_product;
use murmur_training::ops::Kernels;
use murmur_training::split::{self, Cut, NoCut, Place};
use murmur_training::{
    BaseWeights, Corpus, Device, Engine, MemoryEstimate, StageOnDevice, TrainingError, TrainingOptions, free_memory,
};

use super::devices::{Devices, name};
use super::offload::offload;
use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};
use crate::limits::memory_check;
use crate::process::stats::available_memory;
use crate::settings::{Split, TrainingSettings};

/// Who holds what.
#[derive(Clone, Debug)]
pub(crate) enum Arrangement {
    /// Each device has the whole model, and takes a batch of its own at every step.
    Replicas(Vec<Device>),
    /// Each has a stage, and a batch goes through them.
    Pipeline(Vec<StageOnDevice>),
    /// It lies in the machine's memory, and this GPU trains it.
    Offloaded(Device),
}

/// An arrangement whose memory has been checked, and a line for people that says what was chosen and why; none where there was
/// nothing to choose.
pub(crate) struct Arranged {
    pub(crate) arrangement: Arrangement,
    pub(crate) line: Option<String>,
}

/// Devices that are open, and how they train a run that fits them.
pub(crate) struct Fitted {
    pub(crate) devices: Devices,
    pub(crate) arranged: Arranged,
}

impl Fitted {
    /// Opens the devices and checks the memory of a run.
    ///
    /// # Errors
    /// When there is no such device, or the run does not fit.
    pub(crate) fn find(manifest: &RunManifest, settings: &TrainingSettings) -> Result<Fitted, Failure> {
        let devices = Devices::open(settings)?;
        Ok(Fitted { arranged: arrange(manifest, settings, &devices)?, devices })
    }
}

impl Arrangement {
    /// The engine of a run.
    ///
    /// # Errors
    /// As [`Engine::on_base`].
    pub(crate) fn engine(
        &self,
        manifest: &RunManifest,
        base: Option<BaseWeights>,
        corpus: Corpus,
        node: [u8; 32],
        options: TrainingOptions,
    ) -> Result<Engine, TrainingError> {
        match self {
            Arrangement::Replicas(devices) => Engine::on_base(manifest, base, corpus, node, devices, options),
            Arrangement::Pipeline(stages) => Engine::over_stages(manifest, base, corpus, node, stages, options),
            Arrangement::Offloaded(gpu) => Engine::offloaded(manifest, base, corpus, node, gpu, options),
        }
    }

    /// Whether some of it is computed on the CPU, or comes from the machine's memory at every step.
    pub(crate) fn may_be_slow(&self) -> bool {
        match self {
            Arrangement::Offloaded(_) => true,
            Arrangement::Replicas(devices) => devices.iter().any(Device::is_cpu),
            Arrangement::Pipeline(stages) => stages.iter().any(|stage| stage.device.is_cpu()),
        }
    }
}

/// Chooses as the settings say; `auto` cuts a model only where it does not fit into each device, and offloads it only where no cut
/// fits. Takes nothing but a few milliseconds of unlike devices, whose speeds it measures.
///
/// # Errors
/// When the run does not fit in the way that is asked for, or in any; with the numbers.
pub(crate) fn arrange(
    manifest: &RunManifest,
    settings: &TrainingSettings,
    devices: &Devices,
) -> Result<Arranged, Failure> {
    if settings.moment_bits == 8 && manifest.synchronous.is_on() && manifest.synchronous.averages_gradients() {
        let message = "training.moment_bits = 8 is for a node's own moments, and members of this synchronous run have them in common";
        return Err(Failure::new(ExitCode::Settings, message).hint("keep training.moment_bits = 32 for this run"));
    }
    let replicas = |line| Arranged { arrangement: Arrangement::Replicas(devices.all.clone()), line };
    let offloaded = |why: &str| {
        let (gpu, line) = offload(manifest, settings, devices, why)?;
        Ok(Arranged { arrangement: Arrangement::Offloaded(gpu), line: Some(line) })
    };
    let (is_one, is_auto) = (devices.all.len() == 1, settings.split == Split::Auto);
    if is_one && settings.split != Split::Offload {
        let in_vain = settings.split == Split::Pipeline;
        let line = in_vain
            .then(|| format!("split = pipeline needs two devices or more: {} has the whole model", devices.name));
        let Some(shortage) = memory_check::shortage(manifest, settings, devices) else { return Ok(replicas(line)) };
        let why = format!("the model does not fit {} ({})", devices.name, shortage.described());
        return if is_auto { offloaded(&why).map_err(|_| shortage.failure()) } else { Err(shortage.failure()) };
    }
    let line = |why: &str| Some(format!("{why}: {} have the whole model each, and a batch each", devices.name));
    match settings.split {
        Split::Replicate => {
            memory_check::check(manifest, settings, devices)?;
            Ok(replicas(line("split = replicate")))
        }
        Split::Pipeline => pipeline(manifest, settings, devices, "split = pipeline"),
        Split::Offload => offloaded("split = offload"),
        Split::Auto => match memory_check::shortage(manifest, settings, devices) {
            None => Ok(replicas(line("the model fits each device"))),
            Some(shortage) => {
                let why = format!("the model does not fit each device ({})", shortage.described());
                let no_cut = format!("no cut of the model fits the devices ({} on each)", shortage.described());
                // What a single device lacks says more than what all cuts lack.
                let cut = pipeline(manifest, settings, devices, &why).or_else(|_| offloaded(&no_cut));
                cut.map_err(|_| shortage.failure())
            }
        },
    }
}

fn pipeline(
    manifest: &RunManifest,
    settings: &TrainingSettings,
    devices: &Devices,
    why: &str,
) -> Result<Arranged, Failure> {
    let options = devices.options(settings);
    let on_cpu = devices.on_cpu();
    let threads = (rayon::current_num_threads() / on_cpu.max(1)).max(1);
    let all_alike = devices.all.iter().all(|device| device.is_cpu() == devices.all[0].is_cpu());
    let of_whole = if on_cpu == devices.all.len() { MemoryEstimate::of } else { MemoryEstimate::saved_as_a_whole };
    let whole = of_whole(manifest, &options, Kernels::Fused, threads);
    let place = |device: &Device| Place {
        kernels: Kernels::choose(device, manifest),
        threads,
        speed: if all_alike { 1.0 } else { measured_speed(manifest, &options, device, on_cpu) },
        free: match device.is_cpu() {
            // Stages on the CPU share what copies leave of the machine's memory.
            true => available_memory().map(|free| free.saturating_sub(whole.on_machine()) / on_cpu as u64),
            false => free_memory(device),
        },
    };
    let places: Vec<Place> = devices.all.iter().map(place).collect();
    let cut = split::cut(manifest, &options, &places).map_err(|error| {
        let failure = Failure::new(ExitCode::Settings, format!("{} cannot share the model: {error}", devices.name));
        failure.hint(match error {
            NoCut::Memory => memory_check::REMEDY,
            NoCut::Model(_) => "use --split replicate, or one device",
        })
    })?;
    memory_check::check_stages(&cut, devices)?;
    let line = Some(format!("{why}: {}", described(&cut, devices)));
    let stages = cut.stages.into_iter().map(|placed| {
        let device = devices.all[placed.place].clone();
        StageOnDevice { device, stage: placed.stage }
    });
    Ok(Arranged { arrangement: Arrangement::Pipeline(stages.collect()), line })
}

/// Operations a second of the products of the run's model, where a device tells.
fn measured_speed(manifest: &RunManifest, options: &TrainingOptions, device: &Device, on_cpu: usize) -> f64 {
    let rows = manifest.model.context() as usize;
    let share = if device.is_cpu() { on_cpu as f64 } else { 1.0 };
    let model = manifest.model.transformer();
    let timed = model.and_then(|model| timed_product(model, rows, device, options.precision).ok());
    timed.map_or(1.0, |(duration, operations)| operations / duration.as_secs_f64().max(1e-9) / share)
}

/// "layers 0-14 on cuda:0, 15-23 on cuda:1, 91 % busy expected".
fn described(cut: &Cut, devices: &Devices) -> String {
    let stage = |placed: &split::PlacedStage| {
        let (layers, device) = (&placed.stage.layers, name(&devices.all[placed.place]));
        let last = layers.end - 1;
        let layers = if layers.start == last { last.to_string() } else { format!("{}-{last}", layers.start) };
        format!("{layers} on {device} ({})", human_bytes(placed.memory.on_device()))
    };
    let stages: Vec<String> = cut.stages.iter().map(stage).collect();
    format!("layers {}, {:.0} % busy expected", stages.join(", "), 100.0 * cut.busy)
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{MlpModel, TransformerModel};

    use super::*;

    fn manifest_of(model: TransformerModel) -> RunManifest {
        RunManifest { model: model.into(), ..RunManifest::default() }
    }

    fn settings(devices: usize, split: Split) -> TrainingSettings {
        TrainingSettings { devices: vec!["cpu".to_owned(); devices], split, ..TrainingSettings::default() }
    }

    fn arranged(manifest: &RunManifest, devices: usize, split: Split) -> Result<Arranged, Failure> {
        let settings = settings(devices, split);
        arrange(manifest, &settings, &Devices::open(&settings).expect("there is always a CPU"))
    }

    #[test]
    fn one_line_says_what_was_chosen_and_why() {
        let manifest = RunManifest::default();
        for split in [Split::Auto, Split::Replicate] {
            assert!(arranged(&manifest, 1, split).expect("a device").line.is_none(), "nothing to choose");
        }
        let line = arranged(&manifest, 1, Split::Pipeline).expect("a device").line.unwrap_or_default();
        assert!(line.starts_with("split = pipeline needs two devices or more: "), "{line}");
        let auto = arranged(&manifest, 2, Split::Auto).expect("it is small");
        assert!(matches!(auto.arrangement, Arrangement::Replicas(devices) if devices.len() == 2));
        assert_eq!(
            auto.line.as_deref(),
            Some("the model fits each device: cpu, cpu have the whole model each, and a batch each")
        );
        let cut = arranged(&manifest, 2, Split::Pipeline).expect("it is small");
        let Arrangement::Pipeline(stages) = cut.arrangement else { panic!("it was asked for") };
        assert_eq!(stages.len(), 2);
        let line = cut.line.expect("a line");
        assert!(line.starts_with("split = pipeline: layers 0") && line.ends_with(" % busy expected"), "{line}");
        assert!(line.contains(" on cpu ("), "{line}");
        let tied = manifest_of(TransformerModel { tied_head: true, ..TransformerModel::default() });
        let cut = arranged(&tied, 2, Split::Pipeline).expect("the last stage has a copy of the table");
        assert!(matches!(cut.arrangement, Arrangement::Pipeline(stages) if stages.len() == 2));
    }

    #[test]
    fn what_cannot_be_cut_or_is_too_large_is_refused_before_it_begins() {
        let manifest = RunManifest { model: MlpModel::default().into(), ..RunManifest::default() };
        let failure = arranged(&manifest, 2, Split::Pipeline).err().expect("it has no layers that are alike");
        assert!(failure.to_string().contains("cpu, cpu cannot share the model"), "{failure}");
        assert!(failure.remedy().contains("--split replicate"), "{}", failure.remedy());
        let (layers, width, feed_forward) = (128, 16_384, 65_536);
        let manifest = manifest_of(TransformerModel { layers, width, feed_forward, ..TransformerModel::default() });
        if available_memory().is_none() {
            return; // this system does not tell
        }
        for split in [Split::Auto, Split::Replicate, Split::Pipeline, Split::Offload] {
            let failure = arranged(&manifest, 2, split).err().expect("terabytes");
            assert_eq!(failure.code(), ExitCode::Settings, "{failure}");
        }
    }

    /// Two replicas that do not fit, and one model that does.
    #[test]
    fn a_model_that_fits_only_once_is_cut() {
        let Some(free) = available_memory() else { return };
        let of_width = |width| {
            manifest_of(TransformerModel { layers: 64, width, feed_forward: 3 * width, ..TransformerModel::default() })
        };
        let needed = |width: u32, replicas: u64| {
            let manifest = &of_width(width);
            let options = settings(2, Split::Auto).options();
            let estimate = MemoryEstimate::of(manifest, &options, Kernels::Fused, rayon::current_num_threads());
            replicas * estimate.on_device() + estimate.on_machine()
        };
        // Halfway between what one takes and what two take.
        let is_halfway = |width: &u32| needed(*width, 1) + needed(*width, 2) >= 2 * free;
        let manifest = of_width((64..16_384).step_by(8).find(is_halfway).unwrap_or(16_384));
        let cut = arranged(&manifest, 2, Split::Auto).expect("it fits once");
        assert!(matches!(&cut.arrangement, Arrangement::Pipeline(stages) if stages.len() == 2));
        let line = cut.line.expect("a line");
        assert!(
            line.starts_with("the model does not fit each device (") && line.contains(" free): layers 0-"),
            "{line}"
        );
    }
}
