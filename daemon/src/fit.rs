//! Whether a run fits into this machine's memory, before any of it is taken.

use murmur_protocol::RunManifest;
use murmur_training::ops::Kernels;
use murmur_training::{Device, MemoryEstimate};

use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};
use crate::usage::available_memory;

/// What lowers the need, most effective first.
pub(crate) const REMEDY: &str = "lower optimizer.batch_sequences or model.context (activations), train adapters with \
     lora.rank (moments and copies), choose a smaller model, or close other programs";

/// The need of a run on this device.
pub(crate) fn estimate(manifest: &RunManifest, device: &Device) -> MemoryEstimate {
    MemoryEstimate::of(manifest, Kernels::for_device(device), rayon::current_num_threads())
}

/// Refuses a run that does not fit.
///
/// # Errors
/// With the numbers, and what to lower.
pub(crate) fn check(manifest: &RunManifest, device: &Device) -> Result<(), Failure> {
    // What is free on a GPU only its driver knows; there the model's set-up fails with the device's own error.
    let Some(free) = available_memory().filter(|_| device.is_cpu()) else { return Ok(()) };
    let estimate = estimate(manifest, device);
    if estimate.total() <= free {
        return Ok(());
    }
    let (needed, free) = (human_bytes(estimate.total()), human_bytes(free));
    let message = format!("training this run takes about {needed} of memory, and {free} are free ({estimate})");
    Err(Failure::new(ExitCode::Failure, message).hint(REMEDY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_its_numbers_and_what_to_lower() {
        let mut manifest = RunManifest::default();
        assert!(check(&manifest, &Device::Cpu).is_ok());
        manifest.model.width = 16_384;
        manifest.model.feed_forward = 65_536;
        manifest.model.layers = 128;
        manifest.optimizer.batch_sequences = 4096;
        if available_memory().is_none() {
            return; // this system does not tell
        }
        let failure = check(&manifest, &Device::Cpu).expect_err("terabytes");
        let message = failure.to_string();
        for part in ["parameters", "gradient", "moments", "activations", "copies", "are free"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(failure.remedy().contains("optimizer.batch_sequences"), "{}", failure.remedy());
    }
}
