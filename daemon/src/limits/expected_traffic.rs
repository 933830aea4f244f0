//! What a node is expected to send, for programs.

use serde::{Deserialize, Serialize};

/// What a node is expected to send, before it begins. One of the two is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedTraffic {
    /// Bytes sent in the whole run, about, where that is less than in a day; without what members take that copy the model from
    /// here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_run_bytes: Option<u64>,
    /// Bytes sent in a day at most, at this machine's pace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day_bytes_max: Option<u64>,
}
