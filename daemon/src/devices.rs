//! The devices that a node trains on, from its settings.

use murmur_training::{Device, DeviceChoice, DeviceError, DeviceLocation};

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

impl Devices {
    /// Opens what the settings ask for.
    ///
    /// # Errors
    /// When there is no such device.
    pub(crate) fn open(settings: &TrainingSettings) -> Result<Devices, DeviceError> {
        let named: &[String] = &settings.devices;
        let choices = if named.is_empty() { std::slice::from_ref(&settings.device) } else { named };
        let (mut all, mut warning) = (Vec::new(), None);
        for choice in choices {
            let (device, about) = choice.parse::<DeviceChoice>()?.open()?;
            all.push(device);
            warning = warning.or(about);
        }
        let names: Vec<String> = all.iter().map(name).collect();
        Ok(Devices { all, name: names.join(", "), warning })
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
}
