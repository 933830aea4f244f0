//! `node.toml`: the settings of one machine. Every value has a default; `configs/nodes/` annotates them.

use std::path::PathBuf;

use murmur_network::Connectivity;
use murmur_training::DataPlace;
use serde::{Deserialize, Serialize};

use super::{PrivacySettings, StaySettings, TrainingSettings};
use crate::limits::quiet_hours::{QuietHours, parse_time_zone};

/// One machine's own settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSettings {
    /// How it trains.
    pub training: TrainingSettings,
    /// Where the model lies that its run begins from.
    pub model: ModelSettings,
    /// Where its data lies.
    pub data: DataSettings,
    /// What its training may tell of its data.
    pub privacy: PrivacySettings,
    /// Where it listens and whom it dials first.
    pub network: NetworkSettings,
    /// What it keeps.
    pub checkpoint: CheckpointSettings,
    /// What it writes down of how it goes.
    pub journal: JournalSettings,
    /// Where TensorBoard reads how it goes.
    pub tensorboard: TensorBoardSettings,
    /// The MLflow server that is told how it goes.
    pub mlflow: MlflowSettings,
    /// Where it answers `murmur status`.
    pub status: StatusSettings,
    /// What it takes of the machine and of the network.
    pub limits: LimitsSettings,
    /// How long it stays.
    pub stay: StaySettings,
}

/// Where the model lies that a run begins from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    /// A folder with config.json and safetensors files of a model of Hugging Face, or `hf://OWNER/NAME`; empty: none. The
    /// founder's becomes the run's; where the run trains adapters, every node needs it.
    pub base: PathBuf,
}

impl ModelSettings {
    /// The folder, where one is given.
    pub fn base(&self) -> Option<&std::path::Path> {
        (!self.base.as_os_str().is_empty()).then_some(&self.base)
    }
}

/// Where data lies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSettings {
    /// Files, folders and remote places (`https://…`, `s3://…`, `hf://datasets/…`) to train on, in this order. Needed unless
    /// the run's `data.source` is "grammar"; where the run shares them, by its founder alone.
    pub files: Vec<PathBuf>,
    /// Whether remote places that a run names are loaded, without this node's keys.
    pub accept_remote: bool,
    /// The `tokenizer.json` of a run that reads its text with one; empty: none.
    pub tokenizer: PathBuf,
    /// Where data is kept in the form that training reads (tokens, decoded images); empty: `prepared` in the data
    /// directory.
    pub cache: PathBuf,
}

/// Where a node listens and whom it dials first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSettings {
    /// What others see beside this node's id, at most 32 bytes; empty: nothing. Anybody may take any name.
    pub name: String,
    /// Multiaddresses to listen on; empty: TCP and QUIC on `port` of every IPv4 address. Port 0 lets the system choose.
    pub listen: Vec<String>,
    /// Where `listen` is empty: 4711 or, if it is taken, the next free one for 0; else this port.
    pub port: u16,
    /// Multiaddresses of members to dial first, with or without `/p2p/…`.
    pub bootstrap: Vec<String>,
    /// Whether only who has a ticket may join: the membership secret is drawn once and kept in the data directory.
    pub closed: bool,
    /// A membership secret of 64 hexadecimal digits to use instead; empty: none.
    pub secret_file: PathBuf,
    /// Peer ids; where it is not empty, nobody else may connect.
    pub allow: Vec<String>,
    /// Peer ids that may not connect, allowed or not.
    pub block: Vec<String>,
    /// Find members on the local network, and be found there.
    pub mdns: bool,
    /// Take part in the run's lookup table.
    pub kademlia: bool,
    /// Find out whether others reach this node, use relays where they do not, punch holes through NATs.
    pub nat: bool,
    /// Relay messages for others, if this node can be reached.
    pub relay_server: bool,
    /// Ask the router to forward the ports; only in a murmur built with the feature `upnp`.
    pub upnp: bool,
}

/// What a node keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Identity, known peers and checkpoints; empty: `murmur/<run>` in the user's data directory.
    pub directory: PathBuf,
    /// Seconds between two checkpoints, the first of them within 30 s; 0 writes only the final one.
    pub every_seconds: u64,
    /// Checkpoints kept, at least 2, so that a damaged one has a predecessor.
    pub keep: usize,
}

/// What a node writes down of how it goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JournalSettings {
    /// Megabytes that the journal in the data directory takes at most; 0 writes none. A day takes about 40.
    pub megabytes: u64,
}

/// Where TensorBoard reads how a node goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorBoardSettings {
    /// Event files go into `<run>/<node>` below this folder; empty: none are written.
    pub directory: PathBuf,
}

/// The MLflow server that is told how a node goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MlflowSettings {
    /// Its address, such as "http://127.0.0.1:5000"; empty: none.
    pub url: String,
    /// The experiment that the node's run belongs to; empty: the name of the run file's run.
    pub experiment: String,
    /// Send the model once it is complete, where the server takes files.
    pub model: bool,
}

/// Where a node answers `murmur status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatusSettings {
    /// A loopback address and port; "auto" is 127.0.0.1:4780 or, if it is taken, the next free port; empty turns it off.
    pub address: String,
}

impl DataSettings {
    /// The same as training wants it; `cache` is where prepared data goes unless the settings say otherwise.
    pub fn place(&self, cache: Option<PathBuf>) -> DataPlace {
        let given = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
        let (tokenizer, cache) = (given(&self.tokenizer), given(&self.cache).or(cache));
        DataPlace { files: self.files.clone(), tokenizer, cache, ..DataPlace::default() }
    }
}

impl Default for NetworkSettings {
    fn default() -> Self {
        NetworkSettings {
            name: String::new(),
            listen: Vec::new(),
            port: 0,
            bootstrap: Vec::new(),
            closed: false,
            secret_file: PathBuf::new(),
            allow: Vec::new(),
            block: Vec::new(),
            mdns: true,
            kademlia: true,
            nat: true,
            relay_server: true,
            upnp: false,
        }
    }
}

impl Default for JournalSettings {
    fn default() -> JournalSettings {
        JournalSettings { megabytes: 256 }
    }
}

impl Default for MlflowSettings {
    fn default() -> MlflowSettings {
        MlflowSettings { url: String::new(), experiment: String::new(), model: true }
    }
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        CheckpointSettings { directory: PathBuf::new(), every_seconds: 300, keep: 2 }
    }
}

impl Default for StatusSettings {
    fn default() -> Self {
        StatusSettings { address: StatusSettings::AUTO.to_owned() }
    }
}

/// What a node takes of a machine and of a network that it shares with others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSettings {
    /// Of the time, training steps take at most so much, in percent, 1 to 100: it pauses between them.
    pub training_percent: f64,
    /// Megabits a second that it sends at most, over all peers, of which exchanges may take all; 0 sets no cap: exchanges
    /// then take a quarter of the uplink as it is measured.
    pub upload_mbit: f64,
    /// Megabits a second that it receives at most; 0 sets no cap.
    pub download_mbit: f64,
    /// Gigabytes (10⁹ bytes) a day, both ways together, after which it rests; 0 sets no budget.
    pub daily_gigabytes: f64,
    /// When it rests every day, such as "22:00-07:00"; empty: never. Training goes on meanwhile, joining waits.
    pub quiet_hours: String,
    /// Of those hours and days: "Europe/Berlin", "+02:00" or "UTC"; empty: this machine's.
    pub time_zone: String,
}

impl Default for LimitsSettings {
    fn default() -> Self {
        LimitsSettings {
            training_percent: 100.0,
            upload_mbit: 0.0,
            download_mbit: 0.0,
            daily_gigabytes: 0.0,
            quiet_hours: String::new(),
            time_zone: String::new(),
        }
    }
}

impl LimitsSettings {
    /// What `training_percent` takes.
    pub(crate) const PERCENT_RULE: &str = "1 to 100";

    /// What a cap takes, in megabits a second.
    pub(crate) const CAP_RULE: &str = "0 (no cap), or 0.2 to 1000000";

    /// What a day's budget takes, in gigabytes.
    pub(crate) const BUDGET_RULE: &str = "0 (no budget) to 1000000";

    /// Whether training can take so many percent of the time.
    pub(crate) fn is_percent(percent: f64) -> bool {
        (1.0..=100.0).contains(&percent)
    }

    /// Whether so many megabits a second can be a cap.
    pub(crate) fn is_cap(mbit: f64) -> bool {
        mbit == 0.0 || (0.2..=1e6).contains(&mbit)
    }

    /// Whether so many gigabytes can be a day's budget.
    pub(crate) fn is_budget(gigabytes: f64) -> bool {
        (0.0..=1e6).contains(&gigabytes)
    }

    /// The caps in bytes a second.
    pub fn caps(&self) -> murmur_network::Caps {
        let cap = |mbit: f64| (mbit > 0.0).then_some((mbit * 1e6 / 8.0) as u64);
        murmur_network::Caps { upload: cap(self.upload_mbit), download: cap(self.download_mbit) }
    }

    fn validate(&self) -> Result<(), (&'static str, String, &'static str)> {
        for (field, value) in [("limits.upload_mbit", self.upload_mbit), ("limits.download_mbit", self.download_mbit)] {
            if !LimitsSettings::is_cap(value) {
                return Err((field, value.to_string(), LimitsSettings::CAP_RULE));
            }
        }
        if !LimitsSettings::is_percent(self.training_percent) {
            return Err(("limits.training_percent", self.training_percent.to_string(), LimitsSettings::PERCENT_RULE));
        }
        if !LimitsSettings::is_budget(self.daily_gigabytes) {
            return Err(("limits.daily_gigabytes", self.daily_gigabytes.to_string(), LimitsSettings::BUDGET_RULE));
        }
        if QuietHours::parse(&self.quiet_hours).is_none() {
            let rule = "hours such as \"22:00-07:00\", or nothing";
            return Err(("limits.quiet_hours", format!("{:?}", self.quiet_hours), rule));
        }
        if parse_time_zone(&self.time_zone).is_none() {
            let rule = "a time zone such as \"Europe/Berlin\" or \"+02:00\", or nothing for this machine's";
            return Err(("limits.time_zone", format!("{:?}", self.time_zone), rule));
        }
        Ok(())
    }
}

impl StatusSettings {
    /// The first free port from [`DEFAULT_STATUS_PORT`].
    pub const AUTO: &str = "auto";
}

impl NetworkSettings {
    /// Whether the owner has left the port to the daemon.
    pub fn chooses_port(&self) -> bool {
        self.listen.is_empty() && self.port == 0
    }

    /// The port that is tried first.
    pub fn usual_port(&self) -> u16 {
        if self.port == 0 { DEFAULT_PORT } else { self.port }
    }

    /// The addresses to listen on, with this port where they do not say another.
    pub fn listen_at(&self, port: u16) -> Vec<String> {
        match self.listen.as_slice() {
            [] => vec![format!("/ip4/0.0.0.0/tcp/{port}"), format!("/ip4/0.0.0.0/udp/{port}/quic-v1")],
            listen => listen.to_vec(),
        }
    }

    /// The owner's lists, as checked by [`NodeSettings::validate`].
    pub fn admission(&self) -> murmur_network::Admission {
        let set = |peers: &[String]| peers.iter().filter_map(|text| text.parse().ok()).collect();
        murmur_network::Admission { allow: set(&self.allow), block: set(&self.block) }
    }

    /// Which ways of finding peers and of being reached the node uses.
    pub(crate) fn connectivity(&self) -> Connectivity {
        let NetworkSettings { mdns, kademlia, nat, relay_server, upnp, .. } = *self;
        Connectivity { mdns, kademlia, nat, relay_server, upnp, ..Connectivity::OFF }
    }
}

/// Where daemons listen for each other.
pub const DEFAULT_PORT: u16 = 4711;

/// Where daemons answer `murmur status`.
pub const DEFAULT_STATUS_PORT: u16 = 4780;

impl NodeSettings {
    /// Checks what serde cannot: the first value out of its range, as (field, value, rule).
    ///
    /// # Errors
    /// That value.
    pub fn validate(&self) -> Result<(), (&'static str, String, &'static str)> {
        let NodeSettings { training, network, checkpoint, journal, status, .. } = self;
        training.validate()?;
        if !(journal.megabytes == 0 || (4..=1_000_000).contains(&journal.megabytes)) {
            return Err(("journal.megabytes", journal.megabytes.to_string(), "4 to 1,000,000, or 0 for none"));
        }
        if !(2..=100).contains(&checkpoint.keep) {
            return Err(("checkpoint.keep", checkpoint.keep.to_string(), "2 to 100"));
        }
        if !network.name.is_empty() && murmur_protocol::Name::new(&network.name).is_none() {
            let rule = "a name of at most 32 bytes, all of which can be seen, or nothing";
            return Err(("network.name", format!("{:?}", network.name), rule));
        }
        let rule = "a multiaddress such as /ip4/192.0.2.7/tcp/4711";
        if let Some(bad) = network.listen.iter().find(|text| text.parse::<murmur_network::Multiaddr>().is_err()) {
            return Err(("network.listen", format!("{bad:?}"), rule));
        }
        if let Some(bad) = network.bootstrap.iter().find(|text| murmur_network::parse_address(text).is_err()) {
            return Err(("network.bootstrap", format!("{bad:?}"), rule));
        }
        for (field, peers) in [("network.allow", &network.allow), ("network.block", &network.block)] {
            if let Some(bad) = peers.iter().find(|text| text.parse::<murmur_protocol::PeerId>().is_err()) {
                return Err((
                    field,
                    format!("{bad:?}"),
                    "peer ids, which begin with 12D3KooW (`murmur status` shows them)",
                ));
            }
        }
        self.limits.validate()?;
        self.stay.validate()?;
        self.privacy.validate()?;
        if network.upnp && !cfg!(feature = "upnp") {
            return Err(("network.upnp", "true".to_owned(), "false: this murmur is built without the feature upnp"));
        }
        let is_loopback = |address: std::net::SocketAddr| address.ip().is_loopback();
        let is_word = status.address.is_empty() || status.address == StatusSettings::AUTO;
        if !is_word && !status.address.parse().is_ok_and(is_loopback) {
            let rule = "a loopback address such as 127.0.0.1:4780, \"auto\", or empty";
            return Err(("status.address", format!("{:?}", status.address), rule));
        }
        Ok(())
    }
}
