//! A model that lies in the machine's memory while a GPU trains it.

use murmur_protocol::RunManifest;
use murmur_training::ops::Kernels;
use murmur_training::{Device, OffloadEstimate, free_memory, why_not_offloaded};

use super::devices::{Devices, name};
use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};
use crate::limits::memory_check;
use crate::process::stats::available_memory;
use crate::settings::{Split, TrainingSettings};

/// The GPU with the most free memory, and a line for people that says what goes where, and why.
///
/// # Errors
/// When there is no GPU, the model is none that can be offloaded, or it does not fit so either; with the numbers.
pub(super) fn offload(
    manifest: &RunManifest,
    settings: &TrainingSettings,
    devices: &Devices,
    why: &str,
) -> Result<(Device, String), Failure> {
    if let Some(reason) = why_not_offloaded(manifest) {
        let message = format!("this model cannot be offloaded: {reason}");
        return Err(Failure::new(ExitCode::Settings, message).hint("use --split auto, or a team of machines"));
    }
    let is_able = |device: &&Device| !device.is_cpu() && Kernels::choose(device, manifest) == Kernels::Cuda;
    let most_free = devices.all.iter().filter(is_able).max_by_key(|device| free_memory(device));
    let Some(gpu) = most_free else {
        let message =
            format!("--split offload is for a GPU that murmur's own kernels run on, which {} is not", devices.name);
        return Err(
            Failure::new(ExitCode::Settings, message).hint("name one with --device cuda:N, or use --split auto")
        );
    };
    let estimate = OffloadEstimate::of(manifest, &devices.options(settings));
    let (place, free) = (name(gpu), [free_memory(gpu), available_memory()]);
    memory_check::check_offload(&estimate, &place, free)?;
    let line = described(&estimate, &place, why);
    // Where only activations are too large, smaller parts of a batch are faster.
    let in_parts = TrainingSettings { recompute: true, micro_batch: 1, split: Split::Replicate, ..settings.clone() };
    Ok((
        gpu.clone(),
        match memory_check::shortage(manifest, &in_parts, devices) {
            None => format!("{line}; {IN_PARTS}"),
            Some(_) => line,
        },
    ))
}

/// Said where a model would fit without this.
const IN_PARTS: &str =
    "with training.recompute = true and a small training.micro_batch it would fit as a whole, and train faster";

/// "the model does not fit cuda:0 (31.00 GB of 12.00 GB free): it lies in the machine's memory (21.00 GB), and cuda:0 trains it
/// layer by layer (1.90 GB)".
fn described(estimate: &OffloadEstimate, gpu: &str, why: &str) -> String {
    let OffloadEstimate { of_gpu, of_machine } = estimate;
    let [on_machine, on_gpu] = [of_machine.on_device() + of_machine.on_machine(), of_gpu.on_device()].map(human_bytes);
    format!("{why}: it lies in the machine's memory ({on_machine}), and {gpu} trains it layer by layer ({on_gpu})")
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::MlpModel;
    use murmur_training::MemoryEstimate;

    use super::*;

    fn refused(manifest: &RunManifest) -> Failure {
        let settings = TrainingSettings { device: "cpu".to_owned(), ..TrainingSettings::default() };
        let devices = Devices::open(&settings).expect("there is always a CPU");
        offload(manifest, &settings, &devices, "split = offload").expect_err("it cannot be")
    }

    #[test]
    fn what_cannot_be_offloaded_is_refused_in_one_line_with_a_remedy() {
        let no_gpu = refused(&RunManifest::default());
        assert!(
            no_gpu.to_string().contains("for a GPU") && no_gpu.to_string().contains("which cpu is not"),
            "{no_gpu}"
        );
        assert!(no_gpu.remedy().contains("--device cuda:N"), "{}", no_gpu.remedy());
        let images = refused(&RunManifest { model: MlpModel::default().into(), ..RunManifest::default() });
        assert!(images.to_string().contains("cannot be offloaded: only transformers"), "{images}");
    }

    #[test]
    fn a_line_says_what_lies_where_and_a_shortage_which_memory_it_is() {
        let of = |parameters: u64| MemoryEstimate { parameters: parameters << 30, ..MemoryEstimate::default() };
        let estimate = OffloadEstimate { of_gpu: of(2), of_machine: of(20) };
        let line = described(&estimate, "cuda:0", "the model does not fit cuda:0");
        let (start, end) = ("the model does not fit cuda:0: it lies in", "cuda:0 trains it layer by layer (2.15 GB)");
        assert!(line.starts_with(start) && line.ends_with(end), "{line}");
        let gigabytes = |gpu: u64, machine: u64| [Some(gpu << 30), Some(machine << 30)];
        let check = |free| memory_check::check_offload(&estimate, "cuda:0", free);
        assert!(check(gigabytes(2, 20)).is_ok() && check([None, None]).is_ok());
        let of_gpu = check(gigabytes(1, 20)).expect_err("a gigabyte is missing").to_string();
        assert!(of_gpu.contains("2.15 GB of the memory of cuda:0"), "{of_gpu}");
        let of_machine = check(gigabytes(2, 19)).expect_err("a gigabyte is missing").to_string();
        assert!(of_machine.contains("21.47 GB of memory"), "{of_machine}");
    }
}
