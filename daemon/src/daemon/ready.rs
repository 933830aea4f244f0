//! That a daemon runs, and where.

use std::path::PathBuf;

use crate::limits::expected_traffic::ExpectedTraffic;

/// What `--format json` prints first.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Ready {
    /// The node's peer id.
    pub peer: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// The run's id, in short.
    pub run: String,
    /// What its owner calls the run.
    #[serde(default)]
    pub run_name: String,
    /// Where it listens, each with the peer id at its end.
    pub addresses: Vec<String>,
    /// Whether only those are let in who have a ticket.
    #[serde(default)]
    pub closed: bool,
    /// With which others join.
    pub ticket: String,
    /// Of the status page, where there is one.
    pub status_address: Option<String>,
    /// Parameters of the model.
    pub parameters: usize,
    /// Where its checkpoints go.
    pub data_directory: PathBuf,
    /// What trains.
    pub device: String,
    /// What its owner should know of that, such as why a GPU does not train.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_warning: Option<String>,
    /// What it is expected to send, where a step was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<ExpectedTraffic>,
}
