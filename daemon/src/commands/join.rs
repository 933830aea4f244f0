//! `murmur join`: with a ticket or an address alone. The manifest comes from a member, the model later as well.

use std::time::Duration;

use murmur_network::{FetchError, Keypair, Multiaddr};
use murmur_protocol::{Bootstrap, RunId, RunManifest, Ticket};

use super::node;
use crate::cli::JoinOptions;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;
use crate::store::DataDirectory;

/// How long one address may take to tell its run.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(options: JoinOptions) -> anyhow::Result<()> {
    let settings = node::settings(&options.node)?;
    let mut bootstrap = Vec::new();
    let mut expected = None;
    if let Some(text) = &options.ticket {
        let ticket: Ticket = text.parse().map_err(|error| {
            Failure::new(ExitCode::Settings, format!("{error}"))
                .hint("`murmur start` and `murmur join` print a ticket; an address goes after --bootstrap")
        })?;
        expected = Some(ticket.run);
        let member = |address| Bootstrap { peer: Some(ticket.peer), address };
        bootstrap.extend(ticket.addresses.iter().cloned().map(member));
    }
    bootstrap.extend(node::bootstrap(&settings.network.bootstrap)?);
    let manifest = match fetch_manifest(&bootstrap, expected) {
        Ok(manifest) => manifest,
        // Any node may vanish, the ticket's too: a member that comes back knows the run and its other peers.
        Err(failure) => match claimed_run(&settings, expected) {
            Some(manifest) => {
                eprintln!("warning: {failure}");
                eprintln!("hint: going on with the run and the peers in the data directory");
                manifest
            }
            None => return Err(failure.into()),
        },
    };
    let directory = node::directory(&settings, &manifest.run.name)?;
    node::run(manifest, settings, directory, bootstrap, true, &options.node)
}

/// Asks one address after the other.
fn fetch_manifest(bootstrap: &[Bootstrap], expected: Option<RunId>) -> Result<RunManifest, Failure> {
    // Only to ask: the node's own identity lies in a directory that is named after the run.
    let identity = Keypair::generate_ed25519();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(ExitCode::Failure, format!("cannot start the runtime: {error}")))?;
    let mut failures = Vec::new();
    let mut refused = false;
    for entry in bootstrap {
        let text = match entry.peer {
            Some(peer) => format!("{}/p2p/{peer}", entry.address),
            None => entry.address.to_string(),
        };
        let Ok(address) = text.parse::<Multiaddr>() else { continue };
        let fetched = runtime.block_on(murmur_network::fetch_manifest(&identity, &address, expected, FETCH_TIMEOUT));
        match fetched {
            Ok((manifest, _)) => return Ok(manifest),
            Err(error) => {
                refused |= matches!(error, FetchError::Refused { .. });
                failures.push(error.to_string());
            }
        }
    }
    let failure = Failure::new(ExitCode::Network, format!("no member can be reached: {}", failures.join("; ")));
    Err(if refused {
        failure.hint("ask for a fresh ticket of the run that you want to join")
    } else {
        failure.hint("is the other daemon running, and may its port be reached from here (firewall, NAT)?")
    })
}

/// The run of this node's data directory, where it is the ticket's.
fn claimed_run(settings: &NodeSettings, expected: Option<RunId>) -> Option<RunManifest> {
    let directory = &settings.checkpoint.directory;
    let manifest = DataDirectory::claimed_manifest(directory).filter(|_| !directory.as_os_str().is_empty())?;
    expected.is_none_or(|expected| expected == manifest.run_id()).then_some(manifest)
}
