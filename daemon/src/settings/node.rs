//! `node.toml`: the settings of one machine. Every value has a default; `configs/nodes/` annotates them.
//!
//! A file for each family of sections declares its keys; here they come together.

use std::ffi::OsString;
use std::sync::LazyLock;

use super::declaration::{Declared, Places};
use super::flag::Taker;
use super::limits::LimitsSettings;
use super::network::{NetworkSettings, StatusSettings};
use super::places::{
    CheckpointSettings, DataSettings, JournalSettings, MlflowSettings, ModelSettings, TensorBoardSettings,
};
use super::privacy::PrivacySettings;
use super::stay::StaySettings;
use super::training::TrainingSettings;

macro_rules! sections {
    ($($(#[doc = $about:literal])* $section:ident: $type:ident)*) => {
        /// One machine's own settings.
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct NodeSettings {
            $($(#[doc = $about])* pub $section: $type,)*
        }

        /// All settings, in the order of the file.
        pub fn declared() -> &'static [Declared<NodeSettings>] {
            static ALL: LazyLock<Vec<Declared<NodeSettings>>> = LazyLock::new(|| {
                let mut all = Vec::new();
                $(
                    let places: Places<NodeSettings, $type> = (|all| &all.$section, |all| &mut all.$section);
                    all.extend($type::declared().into_iter().map(|of| of.within(stringify!($section), places)));
                )*
                all
            });
            &ALL
        }
    };
}

sections! {
    /// How it trains.
    training: TrainingSettings
    /// Where the model lies that its run begins from.
    model: ModelSettings
    /// Where its data lies.
    data: DataSettings
    /// What its training may tell of its data.
    privacy: PrivacySettings
    /// Where it listens and whom it dials first.
    network: NetworkSettings
    /// What it keeps.
    checkpoint: CheckpointSettings
    /// What it writes down of how it goes.
    journal: JournalSettings
    /// Where TensorBoard reads how it goes.
    tensorboard: TensorBoardSettings
    /// The MLflow server that is told how it goes.
    mlflow: MlflowSettings
    /// Where it answers `murmur status`.
    status: StatusSettings
    /// What it takes of the machine and of the network.
    limits: LimitsSettings
    /// How long it stays.
    stay: StaySettings
}

/// A value that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The setting: `limits.upload_mbit`.
    pub key: &'static str,
    /// Its option of the command line, without the dashes, where it has one.
    pub option: Option<&'static str>,
    /// The value, as it is shown.
    pub value: String,
    /// What it takes.
    pub takes: String,
}

impl NodeSettings {
    /// Checks what serde cannot.
    ///
    /// # Errors
    /// The first value out of its range, in the order of the file.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let broken = declared().iter().find_map(|setting| Some((setting, setting.broken(self)?)));
        broken.map_or(Ok(()), |(setting, (value, takes))| {
            Err(OutOfRange { key: setting.key(), option: setting.option(), value, takes })
        })
    }
}

/// The options with which `start` and `join` are told what is not at its default, of those options that set one key and no more.
pub fn as_typed(settings: &NodeSettings) -> Vec<OsString> {
    let of_daemons = |setting: &&Declared<NodeSettings>| setting.is_of(Taker::Machine) || setting.is_of(Taker::Daemon);
    declared().iter().filter(of_daemons).flat_map(|setting| setting.words(settings)).collect()
}
