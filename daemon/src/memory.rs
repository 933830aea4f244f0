//! Whether a run fits into this machine's memory, before any of it is taken.

use murmur_protocol::RunManifest;
use murmur_training::ops::Kernels;
use murmur_training::{Device, MemoryEstimate};

use crate::console::human_bytes;
use crate::failure::{ExitCode, Failure};

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
    let Some(free) = available().filter(|_| device.is_cpu()) else { return Ok(()) };
    let estimate = estimate(manifest, device);
    if estimate.total() <= free {
        return Ok(());
    }
    let (needed, free) = (human_bytes(estimate.total()), human_bytes(free));
    let message = format!("training this run takes about {needed} of memory, and {free} are free ({estimate})");
    Err(Failure::new(ExitCode::Failure, message).hint(REMEDY))
}

/// Free for new programs, in bytes, also by the limit of the container that this runs in; `None` where the system does
/// not say.
pub(crate) fn available() -> Option<u64> {
    let machine = kibibytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let number = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok();
    let (limit, used): (Option<u64>, Option<u64>) = (number("memory.max"), number("memory.current"));
    Some(limit.zip(used).map_or(machine, |(limit, used)| machine.min(limit.saturating_sub(used))))
}

/// A line of the system's tables, in bytes.
pub(crate) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(1024 * line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_tables_are_read() {
        assert_eq!(kibibytes("MemTotal: 9 kB\nMemAvailable:   2048 kB\n", "MemAvailable:"), Some(2048 * 1024));
        assert_eq!(kibibytes("MemTotal: 9 kB\n", "MemAvailable:"), None);
        assert_eq!(kibibytes("VmHWM:\tmany\n", "VmHWM:"), None);
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_its_numbers_and_what_to_lower() {
        let mut manifest = RunManifest::default();
        assert!(check(&manifest, &Device::Cpu).is_ok());
        manifest.model.width = 16_384;
        manifest.model.feed_forward = 65_536;
        manifest.model.layers = 128;
        manifest.optimizer.batch_sequences = 4096;
        if available().is_none() {
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
