//! `--record-core`: where a daemon records what its core is told and decides.

use std::io::ErrorKind;

use murmur_protocol::{Config, ModelLayout, PeerId};

use super::Plan;
use crate::engine::Recorder;
use crate::failure::{ExitCode, Failure};

/// The recorder of the node that these make, where one is wanted.
pub(super) fn recorder(
    plan: &Plan,
    config: &Config,
    node: (PeerId, &ModelLayout, u64),
) -> Result<Option<Recorder>, Failure> {
    let Some(path) = &plan.record_core else { return Ok(None) };
    let begun = Recorder::begin(path, &plan.manifest, config, node);
    let recorder = begun.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AlreadyExists => "a recording is never written over: move it away, or name another file",
            _ => "name another file after --record-core",
        };
        Failure::new(ExitCode::Files, format!("cannot record to {}: {error}", path.display())).hint(hint)
    })?;
    Ok(Some(recorder))
}
