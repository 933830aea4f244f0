//! What `start` and `join` have in common: settings from file, environment and flags, and the data directory.

use std::path::Path;

use clap::{Args as _, FromArgMatches as _};

use murmur_network::{IdentityError, Keypair, parse_address};
use murmur_protocol::{Bootstrap, RunManifest, Secret};

use super::membership;
use crate::cli::{self, MachineOptions, NodeOptions};
use crate::console::{Console, note};
use crate::daemon::{Entry, Plan};
use crate::environment;
use crate::failure::{ExitCode, Failure, to_write};
use crate::process::memory;
use crate::remote::{self, Allowance};
use crate::settings::{Daemon, Flags, NodeSettings, OutOfRange, fault, load_node_settings};
use crate::store::{DataDirectory, make_private, remember};
use crate::team;

/// defaults < file < environment < flags.
pub(super) fn settings(options: &NodeOptions) -> Result<NodeSettings, Failure> {
    let mut settings = from_file(&options.machine)?;
    options.machine.settings.take_into(&mut settings);
    options.daemon.settings.take_into(&mut settings);
    // A wrong line is told before anything is loaded.
    team::captain::lines(&settings)?;
    settled(settings)
}

/// The same of a machine on which no daemon is to run. What only a daemon takes is in the environment all the same.
pub(super) fn machine_settings(options: &MachineOptions) -> Result<NodeSettings, Failure> {
    let mut settings = from_file(options)?;
    let of_daemon = Flags::<Daemon>::augment_args(clap::Command::new("murmur")).try_get_matches_from(["murmur"]);
    let of_daemon = of_daemon.and_then(|matches| Flags::<Daemon>::from_arg_matches(&matches)).map_err(|error| {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Failure::new(ExitCode::CommandLine, message).hint("a variable of the environment says so")
    })?;
    of_daemon.take_into(&mut settings);
    options.settings.take_into(&mut settings);
    settled(settings)
}

fn from_file(options: &MachineOptions) -> Result<NodeSettings, Failure> {
    options.node.as_deref().map_or_else(|| Ok(NodeSettings::default()), load_node_settings)
}

/// Checks settings, and takes the threads that they ask for: before anything is computed, for the first who computes makes the
/// pool. A second one in a process is refused; the first then serves both.
fn settled(settings: NodeSettings) -> Result<NodeSettings, Failure> {
    // The file's own values have been checked with it, so a wrong one comes from an option.
    settings.validate().map_err(|OutOfRange { key, option, value, takes }| {
        let option = option.map_or(key.to_owned(), |option| environment::origin(&cli::command(), option));
        Failure::new(ExitCode::Settings, format!("{key} = {value} {}", fault(&value)))
            .hint(format!("{option} takes {takes}"))
    })?;
    let NodeSettings { checkpoint, data, model, network, stay, tensorboard, .. } = &settings;
    let places = [&checkpoint.directory, &data.cache, &data.tokenizer, &model.base, &network.secret_file];
    let more = [&stay.notice_file, &tensorboard.directory].into_iter().chain(&data.files);
    if let Some(place) = places.into_iter().chain(more).find(|place| place.to_str().is_none()) {
        return Err(Failure::new(ExitCode::Settings, format!("the name {} is not UTF-8", place.display()))
            .hint("rename it, or link to it by another name"));
    }
    let _ = rayon::ThreadPoolBuilder::new().num_threads(settings.training.threads).build_global();
    Ok(settings)
}

/// Whether a node has the run's file, or is told the run by a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    Founds,
    Joins,
}

/// What was loaded for a run before it is known what it begins from.
pub(super) struct Brought {
    /// Taken for what was loaded, which counts in the node's day; `None` where nothing was.
    directory: Option<DataDirectory>,
    /// In bytes.
    loaded: u64,
}

/// Loads what is remote: its places in the settings are on this machine then.
pub(super) fn bring(settings: &mut NodeSettings, manifest: &RunManifest, coming: Coming) -> anyhow::Result<Brought> {
    if !remote::is_wanted(settings, manifest) {
        return Ok(Brought { directory: None, loaded: 0 });
    }
    let directory = directory(settings, manifest, coming)?;
    let allowance = Allowance::of(&settings.limits, directory.traffic_path());
    let loaded = remote::bring(settings, manifest, coming == Coming::Founds, allowance)?;
    Ok(Brought { directory: Some(directory), loaded })
}

impl Brought {
    /// The data directory, opened now where it is not, and the bytes that were loaded.
    pub(super) fn directory(
        self,
        settings: &NodeSettings,
        manifest: &RunManifest,
        coming: Coming,
    ) -> anyhow::Result<(DataDirectory, u64)> {
        let opened = self.directory.map_or_else(|| directory(settings, manifest, coming), Ok);
        Ok((opened?, self.loaded))
    }
}

/// Opens the data directory of a run. Who joins finds the one that the run has on this machine already.
fn directory(settings: &NodeSettings, manifest: &RunManifest, coming: Coming) -> anyhow::Result<DataDirectory> {
    let configured = &settings.checkpoint.directory;
    if !configured.as_os_str().is_empty() {
        return DataDirectory::open(configured);
    }
    DataDirectory::open(&match coming {
        Coming::Founds => DataDirectory::default_path(&manifest.run.name),
        Coming::Joins => DataDirectory::default_of_run(manifest.run_id())
            .unwrap_or_else(|| DataDirectory::default_path_to_join(manifest)),
    })
}

pub(super) fn identity(directory: &DataDirectory) -> Result<Keypair, Failure> {
    if lacks_identity(directory) {
        let path = directory.identity_path();
        note(&format!("warning: {} is missing: this node goes on under a new identity", path.display()));
        note(
            "hint: restore it from a backup (only its owner may read it, so a copy that another user makes lacks it); where this \
             node has founded the run, `murmur finish` cannot end the run from here without it",
        );
    }
    identity_at(&directory.identity_path())
}

/// Whether a node was here whose identity is lost.
fn lacks_identity(directory: &DataDirectory) -> bool {
    directory.root().join("run.toml").exists() && !directory.identity_path().exists()
}

/// The identity in a file, which is made where it is missing.
pub(super) fn identity_at(path: &Path) -> Result<Keypair, Failure> {
    let identity = murmur_network::load_or_create(path).map_err(|error| {
        Failure::new(ExitCode::Files, error.to_string()).hint(match error {
            IdentityError::Write(_, source) => {
                format!("{}, or choose another directory with --data-dir", to_write(&source))
            }
            _ => "restore the file from a backup, or delete it to begin with a new identity".to_owned(),
        })
    })?;
    make_private(path);
    Ok(identity)
}

pub(super) fn bootstrap(addresses: &[String]) -> Result<Vec<Bootstrap>, Failure> {
    let parse = |text: &String| {
        let (peer, address) = parse_address(text).map_err(|error| {
            Failure::new(ExitCode::Settings, error.to_string())
                .hint("an address looks like /ip4/192.0.2.7/tcp/4711, with or without /p2p/12D3KooW… at its end")
        })?;
        Ok(Bootstrap { peer, address })
    };
    addresses.iter().map(parse).collect()
}

/// Everything is known: run the daemon.
pub(super) fn run(
    manifest: RunManifest,
    settings: NodeSettings,
    directory: DataDirectory,
    (entry, secret): (Entry, Option<Secret>),
    options: &NodeOptions,
) -> anyhow::Result<()> {
    directory.check_owner(&manifest)?;
    let secret = membership::resolve(&directory, &settings.network, secret)?;
    let identity = identity(&directory)?;
    // A child of `murmur local` is found by its swarm's folder.
    if !options.daemon.until_stdin_closes {
        remember(directory.root());
    }
    memory::choose_pages(murmur_training::parameter_count(&manifest.model));
    crate::daemon::run(Plan {
        manifest,
        settings,
        directory,
        identity,
        secret,
        entry,
        console: options.machine.format.unwrap_or(Console::Text),
        again: options.again(),
        in_background: options.daemon.in_background,
        record_core: options.daemon.record_core.clone(),
        until_stdin_closes: options.daemon.until_stdin_closes,
        pace: options.daemon.pace,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_missed_only_where_a_node_was() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = DataDirectory::open(folder.path()).expect("free");
        assert!(!lacks_identity(&directory), "a new node");
        directory.claim(&RunManifest::default()).expect("unclaimed");
        assert!(lacks_identity(&directory));
        identity(&directory).expect("made");
        assert!(!lacks_identity(&directory));
    }

    /// Such a name went into lines and files as text, which ended the process with a panic.
    #[cfg(unix)]
    #[test]
    fn names_that_are_not_utf_8_are_refused_wherever_they_stand() {
        use std::os::unix::ffi::OsStrExt;

        let name = || std::path::PathBuf::from(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        let places: [fn(&mut NodeSettings, std::path::PathBuf); 8] = [
            |settings, name| settings.checkpoint.directory = name,
            |settings, name| settings.data.cache = name,
            |settings, name| settings.data.tokenizer = name,
            |settings, name| settings.data.files = vec!["book.txt".into(), name],
            |settings, name| settings.model.base = name,
            |settings, name| settings.network.secret_file = name,
            |settings, name| settings.stay.notice_file = name,
            |settings, name| settings.tensorboard.directory = name,
        ];
        for place in places {
            let mut settings = NodeSettings::default();
            place(&mut settings, name());
            let refused = settled(settings).err().map(|failure| failure.to_string());
            assert!(refused.as_ref().is_some_and(|text| text.ends_with(" is not UTF-8")), "{refused:?}");
        }
    }
}
