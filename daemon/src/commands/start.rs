//! `murmur start`: found a swarm, or come back to one.

use murmur_protocol::RunManifest;

use super::node;
use crate::base;
use crate::cli::StartOptions;
use crate::daemon::corpus_failure;
use crate::settings::load_run_manifest;
use crate::sharing;
use crate::store::DataDirectory;

pub(super) fn run(options: StartOptions) -> anyhow::Result<()> {
    let settings = node::settings(&options.node)?;
    let manifest = match &options.run {
        Some(path) => load_run_manifest(path)?,
        // A node that has joined resumes with its data directory alone.
        None if settings.checkpoint.directory.as_os_str().is_empty() => RunManifest::default(),
        None => DataDirectory::claimed_manifest(&settings.checkpoint.directory).unwrap_or_default(),
    };
    let (manifest, base) = base::found(manifest, &settings)?;
    let manifest = settings.data.place(None).complete(manifest).map_err(|error| corpus_failure(&error))?;
    let manifest = sharing::list(manifest, &settings)?;
    let bootstrap = node::bootstrap(&settings.network.bootstrap)?;
    let directory = node::directory(&settings, &manifest.run.name)?;
    let joins = !bootstrap.is_empty();
    let entry = node::Entry { bootstrap, joins, begins_anew: options.begin_anew, secret: None, base };
    node::run(manifest, settings, directory, entry, &options.node)
}
