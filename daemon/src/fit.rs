//! Whether a run fits into this machine's memory, before any of it is taken.

use murmur_protocol::RunManifest;
use murmur_training::MemoryEstimate;
use murmur_training::ops::Kernels;

use crate::console::human_bytes;
use crate::devices::Devices;
use crate::failure::{ExitCode, Failure};
use crate::settings::TrainingSettings;
use crate::usage::available_memory;

/// What lowers the need, most effective first.
pub(crate) const REMEDY: &str = "set training.recompute = true or lower training.micro_batch, model.context or \
     optimizer.batch_sequences (activations), train adapters with lora.rank (moments and copies), choose a smaller model, \
     or close other programs";

/// Refuses a run that does not fit.
///
/// # Errors
/// With the numbers, and what to lower.
pub(crate) fn check(manifest: &RunManifest, settings: &TrainingSettings, devices: &Devices) -> Result<(), Failure> {
    // What is free on a GPU only its driver knows; there the model's set-up fails with the device's own error.
    let workers = devices.on_cpu() as u64;
    let Some(free) = available_memory().filter(|_| workers > 0) else { return Ok(()) };
    let threads = rayon::current_num_threads();
    let estimate = MemoryEstimate::of(manifest, &settings.options(), Kernels::Fused, threads);
    let needed = workers * estimate.on_device() + estimate.copies;
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (human_bytes(needed), human_bytes(free));
    let times = if workers > 1 { format!("; all but copies {workers} times") } else { String::new() };
    let message = format!("training this run takes about {needed} of memory, and {free} are free ({estimate}{times})");
    Err(Failure::new(ExitCode::Failure, message).hint(REMEDY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_its_numbers_and_what_to_lower() {
        let (mut manifest, settings) = (RunManifest::default(), TrainingSettings::default());
        let devices = Devices::open(&settings).expect("there is always a CPU");
        assert!(check(&manifest, &settings, &devices).is_ok());
        manifest.model.width = 16_384;
        manifest.model.feed_forward = 65_536;
        manifest.model.layers = 128;
        manifest.optimizer.batch_sequences = 4096;
        if available_memory().is_none() {
            return; // this system does not tell
        }
        let failure = check(&manifest, &settings, &devices).expect_err("terabytes");
        let message = failure.to_string();
        for part in ["parameters", "gradient", "moments", "activations", "copies", "are free"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(failure.remedy().contains("optimizer.batch_sequences"), "{}", failure.remedy());
    }
}
