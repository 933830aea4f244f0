//! The devices that a node trains on, from its settings.

use murmur_training::{Device, DeviceChoice, DeviceError, DeviceLocation, Precision, TrainingOptions};

use crate::failure::{ExitCode, Failure};
use crate::settings::TrainingSettings;

/// Devices that are open.
#[derive(Debug)]
pub(crate) struct Devices {
    /// At least one.
    pub(crate) all: Vec<Device>,
    /// For people.
    pub(crate) name: String,
    /// What the user should know of the choice.
    pub(crate) warning: Option<String>,
}

/// Said where bf16 is asked for in vain.
const WITHOUT_BF16: &str = "this processor has no products of 16 bits that are faster than f32 (AVX512-VNNI or AVX512-BF16), \
                            so it trains in f32";

/// Said where moments in 8 bits are asked for in vain.
const WITHOUT_8_BITS: &str = "moments in 8 bits are for CPUs alone, so training.moment_bits = 8 has no effect here";

impl Devices {
    /// Opens what the settings ask for.
    ///
    /// # Errors
    /// When there is no such device: a wrong value of the settings, whichever command meets it.
    pub(crate) fn open(settings: &TrainingSettings) -> Result<Devices, Failure> {
        Devices::opened(settings).map_err(|error| {
            Failure::new(ExitCode::Settings, error.to_string()).hint(match error {
                DeviceError::Unknown(_) => "cuda:0 is the first GPU; --device auto takes it where there is one",
                DeviceError::WithoutCuda(_) => "use --device cpu, or a murmur that is built for GPUs",
                DeviceError::Unusable(..) => "use --device cpu, or install the GPU's driver",
            })
        })
    }

    fn opened(settings: &TrainingSettings) -> Result<Devices, DeviceError> {
        let named: &[String] = &settings.devices;
        let choices = if named.is_empty() { std::slice::from_ref(&settings.device) } else { named };
        let (mut all, mut warning) = (Vec::new(), None);
        for choice in choices {
            let (device, about) = choice.parse::<DeviceChoice>()?.open()?;
            all.push(device);
            warning = warning.or(about);
        }
        let on_cpu = all.iter().any(Device::is_cpu);
        let without_bf16 = on_cpu && settings.precision == Precision::Bf16 && !Precision::Bf16.is_on_this_cpu();
        let without_8_bits = settings.moment_bits == 8 && !all.iter().all(Device::is_cpu);
        for said in [(without_bf16, WITHOUT_BF16), (without_8_bits, WITHOUT_8_BITS)] {
            if let (true, said) = said {
                warning = Some(warning.map_or(said.to_owned(), |warning| format!("{warning}; {said}")));
            }
        }
        let names: Vec<String> = all.iter().map(name).collect();
        Ok(Devices { all, name: names.join(", "), warning })
    }

    /// How the engine is to compute on these.
    pub(crate) fn options(&self, settings: &TrainingSettings) -> TrainingOptions {
        let options = settings.options();
        let moments_in_8_bits = options.moments_in_8_bits && self.on_cpu() == self.all.len();
        TrainingOptions { moments_in_8_bits, ..options }
    }

    /// How many of them take the machine's own memory.
    pub(crate) fn on_cpu(&self) -> usize {
        self.all.iter().filter(|device| device.is_cpu()).count()
    }
}

/// As in settings.
pub(crate) fn name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_devices_wins_over_one() {
        let settings = TrainingSettings { devices: vec!["cpu".to_owned(); 2], ..TrainingSettings::default() };
        let devices = Devices::open(&settings).expect("two workers on the CPU");
        assert_eq!((devices.all.len(), devices.on_cpu(), devices.name.as_str()), (2, 2, "cpu, cpu"));
        let one = Devices::open(&TrainingSettings { device: "cpu".to_owned(), ..TrainingSettings::default() });
        assert_eq!(one.expect("a CPU").all.len(), 1);
    }

    #[test]
    fn bf16_is_honoured_on_a_cpu_or_refused_in_words() {
        let cpu = TrainingSettings { device: "cpu".to_owned(), ..TrainingSettings::default() };
        assert_eq!(Devices::open(&cpu).expect("a CPU").warning, None);
        let warning = Devices::open(&TrainingSettings { precision: Precision::Bf16, ..cpu }).expect("a CPU").warning;
        assert_eq!(warning.is_none(), Precision::Bf16.is_on_this_cpu(), "{warning:?}");
        assert!(warning.is_none_or(|warning| warning.ends_with("trains in f32")));
    }

    #[test]
    fn a_device_that_is_not_there_is_a_wrong_value_with_a_remedy() {
        let there = if cfg!(feature = "cuda") { "cuda:9999" } else { "cuda:0" };
        for device in [there, "gpu"] {
            let settings = TrainingSettings { device: device.to_owned(), ..TrainingSettings::default() };
            let failure = Devices::open(&settings).expect_err("no such device");
            assert_eq!(failure.code(), ExitCode::Settings, "{failure}");
            assert!(failure.remedy().contains("--device"), "{failure}");
        }
    }
}
