//! `murmur start`: found a swarm, or come back to one.

use std::time::SystemTime;

use murmur_network::{Keypair, peer_id};
use murmur_protocol::RunManifest;
use murmur_training::DataPlace;

use super::node::Coming;
use super::{join, node};
use crate::cli::StartOptions;
use crate::daemon::{AskedLength, Entry};
use crate::failure::{ExitCode, Failure};
use crate::limits::stay::Stay;
use crate::remote;
use crate::settings::{NodeSettings, load_run_manifest};
use crate::setup::base_model;
use crate::setup::corpus::{built_in_run, check_statistics, corpus_failure};
use crate::setup::privacy;
use crate::setup::sharing;
use crate::store::DataDirectory;
use crate::team;

pub(super) fn run(options: StartOptions) -> anyhow::Result<()> {
    let mut settings = node::settings(&options.node)?;
    let stay = Stay::begin(&settings.stay, &settings.limits, SystemTime::now());
    let manifest = match &options.run {
        Some(path) => load_run_manifest(path)?,
        // A node that has joined resumes with its data directory alone.
        None if settings.checkpoint.directory.as_os_str().is_empty() => built_in_run(&settings),
        None => {
            DataDirectory::claimed_manifest(&settings.checkpoint.directory).unwrap_or_else(|| built_in_run(&settings))
        }
    };
    team::captain::check(&manifest, &settings)?;
    // Before anything is asked of a founder that would be of no use.
    if settings.privacy.is_on() {
        privacy::check_run(&manifest, &settings)?;
    }
    let brought = node::bring(&mut settings, &manifest, Coming::Founds)?;
    base_model::take_tokenizer(&mut settings, &manifest)?;
    let (manifest, base) = base_model::found(remote::describe(manifest, &settings)?, &settings)?;
    check_statistics(&options.statistics)?;
    let place = DataPlace {
        statistics: options.statistics.clone(),
        private: settings.privacy.is_on(),
        ..settings.data.place(None)
    };
    let manifest = place.complete(manifest).map_err(|error| corpus_failure(&error))?;
    let manifest = sharing::list(manifest, &settings)?;
    let bootstrap = node::bootstrap(&settings.network.bootstrap)?;
    let (directory, loaded) = brought.directory(&settings, &manifest, Coming::Founds)?;
    let identity = node::identity(&directory)?;
    let manifest = with_founder(manifest, &directory, &identity, &settings)?;
    let is_founder = manifest.run.founder == peer_id(&identity).to_string();
    // Killed before its first checkpoint, a member has no model; to found the run once more would be a fork of it.
    let is_member =
        DataDirectory::claimed_manifest(directory.root()).is_some() && !manifest.run.founder.is_empty() && !is_founder;
    let has_secret = directory.secret_path().exists() || !settings.network.secret_file.as_os_str().is_empty();
    if settings.network.closed && !is_founder && !has_secret {
        let message = format!(
            "{} belongs to an open run that another node has founded: --closed would part this node from it",
            directory.root().display()
        );
        let hint =
            "leave --closed out to go on in that run; for one of your own take another --data-dir, or another run.name";
        return Err(Failure::new(ExitCode::Settings, message).hint(hint).into());
    }
    let joins = !bootstrap.is_empty() || (is_member && !options.begin_anew);
    if (options.hours.is_some() || options.tokens.is_some()) && !is_founder {
        let message = "--hours and --tokens are for a run that this node founds, and another one has founded this run";
        return Err(Failure::new(ExitCode::CommandLine, message)
            .hint("give them to `murmur start` there, or leave them out")
            .into());
    }
    let length = options.hours.map(AskedLength::Hours).or(options.tokens.map(AskedLength::Tokens));
    let entry = Entry { bootstrap, joins, begins_anew: options.begin_anew, length, base, loaded, stay };
    node::run(manifest, settings, directory, (entry, None), &options.node)
}

/// A run file leaves open who founds the run. In a directory that belongs to the run it is known, with members to dial
/// they tell it, and else it is this node.
fn with_founder(
    manifest: RunManifest,
    directory: &DataDirectory,
    identity: &Keypair,
    settings: &NodeSettings,
) -> Result<RunManifest, Failure> {
    if !manifest.run.founder.is_empty() {
        return Ok(manifest);
    }
    let with = |founder: &str| {
        let mut manifest = manifest.clone();
        manifest.run.founder = founder.to_owned();
        manifest
    };
    if let Some(claimed) = DataDirectory::claimed_manifest(directory.root()) {
        return Ok(with(&claimed.run.founder));
    }
    if settings.network.bootstrap.is_empty() {
        return Ok(with(&peer_id(identity).to_string()));
    }
    let reached = join::destination(None, settings)?.fetch(settings)?;
    Ok(with(&reached.manifest.run.founder))
}
