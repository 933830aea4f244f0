//! `murmur start`: found a swarm, or come back to one.

use super::node;
use crate::cli::StartOptions;
use crate::settings::load_run_manifest;
use crate::store::DataDirectory;

pub(super) fn run(options: StartOptions) -> anyhow::Result<()> {
    let settings = node::settings(&options.node)?;
    let manifest = match &options.run {
        Some(path) => load_run_manifest(path)?,
        // A node that has joined resumes with its data directory alone.
        None => DataDirectory::claimed_manifest(&settings.checkpoint.directory).unwrap_or_default(),
    };
    let bootstrap = node::bootstrap(&settings.network.bootstrap)?;
    let directory = node::directory(&settings, &manifest.run.name)?;
    node::run(manifest, settings, directory, bootstrap, false, &options.node)
}
