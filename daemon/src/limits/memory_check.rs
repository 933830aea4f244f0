//! Whether a run fits into this machine's memory and on its disk, before any of it is taken.

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_training::ops::Kernels;
use murmur_training::optimizer::moment_lengths;
use murmur_training::split::{Cut, PlacedStage};
use murmur_training::{Device, MemoryEstimate, OffloadEstimate, free_memory};

use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};
use crate::process::stats::available_memory;
use crate::settings::TrainingSettings;
use crate::setup::devices::{Devices, name};
use crate::store::free_bytes;

/// A run that is larger than the machine is a matter of its settings, whichever command meets it.
const DOES_NOT_FIT: ExitCode = ExitCode::Settings;

/// The least of `checkpoint.keep`.
const KEEP_LEAST: usize = 2;

/// What lowers the need, most effective first.
pub(crate) const REMEDY: &str = "set training.recompute = true or lower training.micro_batch, model.context or \
     optimizer.batch_sequences (activations), set training.moment_bits = 8 (moments), train adapters with lora.rank (moments and \
     copies), hold their base in lora.base_bits = 8, choose a smaller model, or close other programs";

/// Refuses a run that does not fit.
///
/// # Errors
/// With the numbers, and what to lower.
pub(crate) fn check(manifest: &RunManifest, settings: &TrainingSettings, devices: &Devices) -> Result<(), Failure> {
    shortage(manifest, settings, devices).map_or(Ok(()), |shortage| Err(shortage.failure()))
}

fn estimate(
    manifest: &RunManifest,
    settings: &TrainingSettings,
    devices: &Devices,
    kernels: Kernels,
) -> MemoryEstimate {
    MemoryEstimate::of(manifest, &devices.options(settings), kernels, rayon::current_num_threads())
}

/// What a daemon holds at most of the machine's memory for exchanges, a checkpoint and a joiner, in bytes: whatever trains.
pub(crate) fn copies(manifest: &RunManifest, settings: &TrainingSettings, devices: &Devices) -> u64 {
    let of = |device: &Device| estimate(manifest, settings, devices, Kernels::choose(device, manifest)).copies;
    devices.all.iter().map(of).max().unwrap_or_default()
}

/// Where a run does not fit that every device holds all of.
pub(crate) fn shortage(manifest: &RunManifest, settings: &TrainingSettings, devices: &Devices) -> Option<Shortage> {
    let workers = devices.on_cpu() as u64;
    let estimate = |kernels| estimate(manifest, settings, devices, kernels);
    let own = estimate(Kernels::Fused);
    let own = MemoryEstimate { copies: copies(manifest, settings, devices), ..own };
    let times = match workers {
        0 => "; here only copies and process, the rest on the GPUs".to_owned(),
        1 => String::new(),
        _ => format!("; all but copies and process {workers} times"),
    };
    let needed = workers * own.on_device() + own.on_machine();
    let of_machine = Shortage::of("memory", needed, available_memory(), format!("{own}{times}"));
    let of_gpu = |gpu: &Device| {
        let place = format!("the memory of {}", name(gpu));
        let its = estimate(Kernels::choose(gpu, manifest));
        Shortage::of(&place, its.on_device(), free_memory(gpu), its.to_string())
    };
    of_machine.or_else(|| devices.all.iter().filter(|device| !device.is_cpu()).find_map(of_gpu))
}

/// Refuses stages that do not fit: those on the CPU together with all copies, each other one on its device.
///
/// # Errors
/// With the numbers, and what to lower.
pub(crate) fn check_stages(cut: &Cut, devices: &Devices) -> Result<(), Failure> {
    let mut of_machine = MemoryEstimate::default();
    let mut shortage = None;
    for PlacedStage { place, memory, .. } in &cut.stages {
        let device = &devices.all[*place];
        of_machine.copies += memory.copies;
        of_machine.process = memory.process;
        if device.is_cpu() {
            of_machine.parameters += memory.parameters;
            of_machine.gradient += memory.gradient;
            of_machine.moments += memory.moments;
            of_machine.activations += memory.activations;
        } else {
            let place = format!("the memory of {}", name(device));
            let its = || Shortage::of(&place, memory.on_device(), free_memory(device), memory.to_string());
            shortage = shortage.or_else(its);
        }
    }
    let needed = of_machine.on_device() + of_machine.on_machine();
    let of_machine = || Shortage::of("memory", needed, available_memory(), of_machine.to_string());
    shortage.or_else(of_machine).map_or(Ok(()), |shortage| Err(shortage.failure()))
}

/// Refuses a model that does not fit even where the machine's memory has it and a GPU some layers at a time; of both, bytes that are
/// free.
///
/// # Errors
/// With the numbers, and what to lower.
pub(crate) fn check_offload(estimate: &OffloadEstimate, gpu: &str, free: [Option<u64>; 2]) -> Result<(), Failure> {
    let OffloadEstimate { of_gpu, of_machine } = estimate;
    let place = format!("the memory of {gpu}");
    let on_gpu = Shortage::of(&place, of_gpu.on_device(), free[0], of_gpu.to_string());
    let needed = of_machine.on_device() + of_machine.on_machine();
    let on_machine = || Shortage::of("memory", needed, free[1], of_machine.to_string());
    on_gpu.or_else(on_machine).map_or(Ok(()), |shortage| Err(shortage.failure()))
}

/// A place with too little memory.
#[derive(Debug)]
pub(crate) struct Shortage {
    place: String,
    /// In bytes.
    needed: u64,
    /// In bytes.
    free: u64,
    estimate: String,
}

impl Shortage {
    /// `None` where enough is free, or nobody knows how much.
    fn of(place: &str, needed: u64, free: Option<u64>, estimate: String) -> Option<Shortage> {
        let free = free.filter(|free| needed > *free)?;
        Some(Shortage { place: place.to_owned(), needed, free, estimate })
    }

    /// "31.00 GB of 12.00 GB free".
    pub(crate) fn described(&self) -> String {
        format!("{} of {} free", human_bytes(self.needed), human_bytes(self.free))
    }

    /// For who asked for this run here.
    pub(crate) fn failure(&self) -> Failure {
        let Shortage { place, estimate, .. } = self;
        let (needed, free) = (human_bytes(self.needed), human_bytes(self.free));
        let message = format!("training this run takes about {needed} of {place}, and {free} are free ({estimate})");
        Failure::new(DOES_NOT_FIT, message).hint(REMEDY)
    }
}

/// What a checkpoint takes on disk.
pub(crate) fn checkpoint_bytes(manifest: &RunManifest, moments_in_8_bits: bool) -> u64 {
    let layout = murmur_training::trained_layout(manifest);
    let moments = moment_lengths(&manifest.optimizer, &layout, moments_in_8_bits);
    // Slow weights and their momentum.
    let outer = if manifest.gossip.outer_learning_rate > 0.0 { 8 * layout.parameters() } else { 0 };
    (4 * layout.parameters() + moments.bytes() + outer) as u64
}

/// Refuses a node that has no room for a single checkpoint of so many bytes: all that it learns would be lost. Returns a warning
/// where there is none for as many as are to be kept and the one that is being written. `there`: checkpoints in the folder.
///
/// # Errors
/// With the numbers.
pub(crate) fn check_disk(
    directory: &Path,
    needed: u64,
    (keep, there): (usize, usize),
) -> Result<Option<String>, Failure> {
    let free = free_bytes(directory);
    // With two of them the older one gives way.
    let at_least = if there < 2 { needed } else { 0 };
    let all = needed * (keep + 1).saturating_sub(there).max(1) as u64;
    let or_lower = if keep > KEEP_LEAST { ", or lower checkpoint.keep" } else { "" };
    let warning = free.filter(|free| all > *free).map(|free| {
        format!(
            "warning: {} are free in {}, and this run's checkpoints take {} more: the oldest goes before a new one is \
             written\nhint: make room there{or_lower}",
            human_bytes(free),
            directory.display(),
            human_bytes(all)
        )
    });
    refuse(at_least, free, |_, free| {
        let needed = human_bytes(needed);
        let message =
            format!("a checkpoint of this run takes {needed}, and {free} are free in {}", directory.display());
        Failure::new(ExitCode::Files, message).hint("make room there, or choose another disk with --data-dir")
    })
    .map(|()| warning)
}

/// Refuses to read a checkpoint that does not fit into memory: its files, and the model made of them.
///
/// # Errors
/// With the numbers.
pub(crate) fn check_checkpoint(folder: &Path) -> Result<(), Failure> {
    let bytes_of = |name| folder.join(name).metadata().map_or(0, |metadata| metadata.len());
    let needed = bytes_of("model.safetensors") + bytes_of("optimizer.safetensors");
    refuse(needed, available_memory(), |needed, free| {
        let message = format!("reading {} takes about {needed} of memory, and {free} are free", folder.display());
        Failure::new(DOES_NOT_FIT, message).hint("close other programs, or read it on a larger machine")
    })
}

fn refuse(needed: u64, free: Option<u64>, failure: impl Fn(String, String) -> Failure) -> Result<(), Failure> {
    match free.filter(|free| needed > *free) {
        Some(free) => Err(failure(human_bytes(needed), human_bytes(free))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;

    use super::*;

    #[test]
    fn a_shortage_is_one_only_where_it_is_known() {
        let of = |needed, free| Shortage::of("the memory of cuda:0", needed, free, "parameters 3 MB".to_owned());
        assert!(of(2, Some(2)).is_none() && of(2, None).is_none());
        let shortage = of(3_000_000, Some(2_000_000)).expect("a megabyte is missing");
        let message = shortage.failure().to_string();
        assert!(message.contains("3.0 MB of the memory of cuda:0, and 2.0 MB are free (parameters 3 MB)"), "{message}");
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_its_numbers_and_what_to_lower() {
        let (mut manifest, settings) = (RunManifest::default(), TrainingSettings::default());
        let devices = Devices::open(&settings).expect("there is always a CPU");
        assert!(check(&manifest, &settings, &devices).is_ok());
        let (layers, width, feed_forward) = (128, 16_384, 65_536);
        manifest.model = TransformerModel { layers, width, feed_forward, ..TransformerModel::default() }.into();
        manifest.optimizer.batch_sequences = 4096;
        if available_memory().is_none() {
            return; // this system does not tell
        }
        let failure = check(&manifest, &settings, &devices).expect_err("terabytes");
        let message = failure.to_string();
        for part in ["parameters", "gradient", "moments", "activations", "copies", "process", "are free"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(failure.remedy().contains("optimizer.batch_sequences"), "{}", failure.remedy());
        assert_eq!(failure.code(), ExitCode::Settings);
    }

    #[test]
    fn a_checkpoint_larger_than_memory_or_disk_is_refused_before_it_is_touched() {
        let folder = tempfile::tempdir().expect("a folder");
        let check_disk_for = |keep, needed, there| check_disk(folder.path(), needed, (keep, there));
        let check_disk = |needed, there| check_disk_for(2, needed, there);
        assert!(check_checkpoint(folder.path()).is_ok() && check_disk(1000, 0).expect("there is room").is_none());
        let failure = check_disk(1 << 55, 1).expect_err("an exabyte");
        assert_eq!(failure.code(), ExitCode::Files);
        assert!(failure.to_string().starts_with("a checkpoint of this run takes"), "{failure}");
        let warning = check_disk(1 << 55, 2).expect("the older one gives way").expect("and that is told");
        assert!(warning.ends_with("hint: make room there"), "{warning}");
        let warning = check_disk_for(3, 1 << 55, 2).expect("the older one gives way").expect("and that is told");
        assert!(warning.ends_with("hint: make room there, or lower checkpoint.keep"), "{warning}");
        let a_third = free_bytes(folder.path()).expect("the system tells") / 3 + (1 << 20);
        let counts = [(0, true), (1, false), (2, false)];
        assert_eq!(counts.map(|(there, _)| (there, check_disk(a_third, there).expect("one fits").is_some())), counts);
        let model = std::fs::File::create(folder.path().join("model.safetensors")).expect("a file");
        // Not every file system takes so long a file, even without content.
        if model.set_len(4 << 40).is_ok() && available_memory().is_some() {
            let failure = check_checkpoint(folder.path()).expect_err("terabytes");
            assert_eq!(failure.code(), ExitCode::Settings);
            assert!(failure.to_string().contains("of memory"), "{failure}");
        }
    }
}
