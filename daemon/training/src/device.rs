//! Which device trains: parsed from what the user wrote, opened with a plain-language answer.

use std::fmt;
use std::str::FromStr;

use candle_core::Device;

use crate::gpu;

/// The device that a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device where there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this number, or nothing.
    Cuda(usize),
}

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The text names no device.
    #[error("unknown device {0:?}: use auto, cpu or cuda:N (the first GPU is cuda:0)")]
    Unknown(String),
    /// CUDA was asked for explicitly.
    #[error("device {0}: this binary was built without CUDA; use auto or cpu, or build with --features cuda")]
    WithoutCuda(DeviceChoice),
    /// CUDA was asked for explicitly and does not work.
    #[error("device {0}: {1}")]
    Unusable(DeviceChoice, String),
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceChoice, DeviceError> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(DeviceChoice::Cuda).ok_or_else(|| DeviceError::Unknown(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => formatter.write_str("auto"),
            DeviceChoice::Cpu => formatter.write_str("cpu"),
            DeviceChoice::Cuda(number) => write!(formatter, "cuda:{number}"),
        }
    }
}

impl DeviceChoice {
    /// Opens the device. The second value is a warning for the user: `auto` had to fall back to the CPU although this
    /// binary could use CUDA, or the GPU does not run our own kernels.
    ///
    /// # Errors
    /// When a CUDA device was named that cannot be used.
    pub fn open(self) -> Result<(Device, Option<String>), DeviceError> {
        match self {
            DeviceChoice::Cpu => Ok((Device::Cpu, None)),
            DeviceChoice::Cuda(number) => {
                let device = open_cuda(self, number)?;
                let slower = gpu::accelerator(&device).err();
                let warning = |reason| format!("{self} trains with candle's operations, which are slower: {reason}");
                Ok((device, slower.map(warning)))
            }
            DeviceChoice::Auto if cfg!(not(feature = "cuda")) => Ok((Device::Cpu, None)),
            DeviceChoice::Auto => Ok(match DeviceChoice::Cuda(0).open() {
                Ok(opened) => opened,
                Err(error) => (Device::Cpu, Some(format!("training on the CPU: {error}"))),
            }),
        }
    }
}

/// Bytes that are free on a GPU; `None` where its driver does not tell, and for the CPU.
pub fn free_memory(device: &Device) -> Option<u64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            // What was freed goes back to the driver when it is waited for.
            device.cuda_stream().synchronize().ok()?;
            let (free, _total) = device.cuda_stream().context().mem_get_info().ok()?;
            Some(free as u64)
        }
        _ => None,
    }
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(choice: DeviceChoice, _number: usize) -> Result<Device, DeviceError> {
    Err(DeviceError::WithoutCuda(choice))
}

#[cfg(feature = "cuda")]
fn open_cuda(choice: DeviceChoice, number: usize) -> Result<Device, DeviceError> {
    // With the libraries there, the device may not be, and cudarc answers some of that with a panic.
    // On a stream of its own: that of `new_cuda` is another one on each thread, and the engine's calls come on several.
    let open = || Device::new_cuda_with_stream(number).map_err(|error| error.to_string());
    let started = || std::panic::catch_unwind(open).unwrap_or_else(|_| Err("CUDA failed to start".to_owned()));
    check_libraries().and_then(|()| started()).map_err(|reason| DeviceError::Unusable(choice, reason))
}

/// Whether all of NVIDIA's libraries are there that a binary of `scripts/build_cuda.py` opens when it first calls them. In
/// other builds they are linked, and there once the program runs.
#[cfg(feature = "cuda")]
fn check_libraries() -> Result<(), String> {
    for name in option_env!("MURMUR_CUDA_LIBRARIES").unwrap_or_default().split_whitespace() {
        // SAFETY: what NVIDIA's libraries do when they are loaded does not depend on this program.
        let library = unsafe { libloading::Library::new(name) }.map_err(|_| {
            let owner = if name.starts_with("libcuda.") { "driver" } else { "CUDA toolkit" };
            format!("{name} cannot be opened; it comes with NVIDIA's {owner}")
        })?;
        std::mem::forget(library);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_read_back_as_written() {
        for text in ["auto", "cpu", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<DeviceChoice>().map(|choice| choice.to_string()).ok(), Some(text.to_owned()));
        }
    }

    #[test]
    fn an_unknown_device_is_named_with_the_remedy() {
        for text in ["gpu", "cuda", "cuda:x", "cuda:-1", ""] {
            let message = text.parse::<DeviceChoice>().expect_err("no device").to_string();
            assert!(message.contains(&format!("{text:?}")) && message.contains("cuda:N"), "{message}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_cuda_auto_is_the_cpu_and_cuda_is_an_error() {
        assert!(matches!(DeviceChoice::Auto.open(), Ok((Device::Cpu, None))));
        let message = DeviceChoice::Cuda(0).open().expect_err("no CUDA").to_string();
        assert!(message.contains("cuda:0") && message.contains("without CUDA"), "{message}");
    }
}
