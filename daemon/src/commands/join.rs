//! `murmur join`: with a ticket or an address alone. The manifest comes from a member, the model later as well.

use std::time::Duration;

use murmur_network::{FetchError, Keypair, Multiaddr, Question};
use murmur_protocol::handshake::{Credentials, Refusal};
use murmur_protocol::{Bootstrap, RunId, RunManifest, Secret, Ticket};

use tokio::task::JoinSet;

use super::{membership, node};
use crate::cli::JoinOptions;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;
use crate::store::{DataDirectory, SECRET_FILE};

/// How long one address may take to tell its run.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a ticket, or an address, leads.
pub(super) struct Destination {
    /// Members to dial.
    pub(super) bootstrap: Vec<Bootstrap>,
    /// What is known of the run.
    credentials: Option<Credentials>,
}

impl Destination {
    /// The run there, from a member that answers, and its secret where it is closed.
    pub(super) fn fetch(&self, settings: &NodeSettings) -> Result<(RunManifest, Option<Secret>), Failure> {
        let manifest = fetch_manifest(&self.bootstrap, self.credentials.as_ref(), settings)?;
        Ok((manifest, self.credentials.as_ref().and_then(|credentials| credentials.secret.clone())))
    }
}

/// Reads a ticket and the addresses of the settings.
pub(super) fn destination(ticket: Option<&str>, settings: &NodeSettings) -> Result<Destination, Failure> {
    let mut bootstrap = Vec::new();
    let mut credentials = None;
    if let Some(text) = ticket {
        let ticket: Ticket = text.parse().map_err(|error| {
            Failure::new(ExitCode::Settings, format!("{error}"))
                .hint("`murmur start` and `murmur join` print a ticket; an address goes after --bootstrap")
        })?;
        let member = |address| Bootstrap { peer: Some(ticket.peer), address };
        bootstrap.extend(ticket.addresses.iter().cloned().map(member));
        for other in ticket.others {
            let member = |address| Bootstrap { peer: Some(other.peer), address };
            bootstrap.extend(other.addresses.into_iter().map(member));
        }
        credentials = Some(Credentials { run: ticket.run, secret: ticket.secret });
    }
    bootstrap.extend(node::bootstrap(&settings.network.bootstrap)?);
    if credentials.as_ref().is_none_or(|credentials| credentials.secret.is_none()) {
        credentials = own_credentials(settings, credentials)?;
    }
    Ok(Destination { bootstrap, credentials })
}

pub(super) fn run(options: JoinOptions) -> anyhow::Result<()> {
    let settings = node::settings(&options.node)?;
    let destination = destination(options.ticket.as_deref(), &settings)?;
    let run = destination.credentials.as_ref().map(|credentials| credentials.run);
    let (manifest, secret) = match destination.fetch(&settings) {
        Ok(fetched) => fetched,
        // Any node may vanish, the ticket's too: a member that comes back knows the run and its other peers.
        Err(failure) => match claimed_run(&settings, run) {
            Some(manifest) => {
                eprintln!("warning: {failure}");
                eprintln!("hint: going on with the run and the peers in the data directory");
                (manifest, None)
            }
            None => return Err(failure.into()),
        },
    };
    let directory = node::directory(&settings, &manifest.run.name)?;
    let entry = node::Entry { bootstrap: destination.bootstrap, joins: true, secret, base: None };
    node::run(manifest, settings, directory, entry, &options.node)
}

/// What this node knows already, for a ticket without a secret, or none: its own run and secret, or the owner's file.
fn own_credentials(settings: &NodeSettings, ticket: Option<Credentials>) -> Result<Option<Credentials>, Failure> {
    let directory = &settings.checkpoint.directory;
    let claimed = claimed_run(settings, ticket.as_ref().map(|ticket| ticket.run)).map(|manifest| manifest.run_id());
    let kept = match claimed {
        Some(_) => membership::read(&directory.join(SECRET_FILE))?,
        None => None,
    };
    let secret = kept.or(membership::from_settings(&settings.network)?);
    Ok(match (ticket, claimed, secret) {
        (Some(ticket), _, secret) => Some(Credentials { run: ticket.run, secret }),
        (None, Some(run), Some(secret)) => Some(Credentials { run, secret: Some(secret) }),
        (None, _, _) => None,
    })
}

/// Asks the members at these addresses for the run.
fn fetch_manifest(
    bootstrap: &[Bootstrap],
    credentials: Option<&Credentials>,
    settings: &NodeSettings,
) -> Result<RunManifest, Failure> {
    let identity = asking_identity(settings);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(ExitCode::Failure, format!("cannot start the runtime: {error}")))?;
    let mut addresses: Vec<Multiaddr> = Vec::new();
    for entry in bootstrap {
        let text = match entry.peer {
            Some(peer) => format!("{}/p2p/{peer}", entry.address),
            None => entry.address.to_string(),
        };
        addresses.extend(text.parse::<Multiaddr>());
    }
    let (failures, refused) = match runtime.block_on(ask_all(&identity, addresses, credentials)) {
        Ok(manifest) => return Ok(manifest),
        Err(failed) => failed,
    };
    let failure = Failure::new(ExitCode::Network, format!("no member can be reached: {}", failures.join("; ")));
    Err(match refused {
        Some(Refusal::NotAdmitted) => failure.hint(format!(
            "ask the owner of that machine to admit this node's peer id, {} (it lasts only with --data-dir)",
            murmur_network::peer_id(&identity)
        )),
        Some(Refusal::OtherRun { .. } | Refusal::Stranger) => {
            failure.hint("ask for a fresh ticket of the run that you want to join")
        }
        Some(refusal) => failure.hint(refusal.remedy()),
        None => failure.hint("is the other daemon running, and may its port be reached from here (firewall, NAT)?"),
    })
}

/// Asks all addresses at once, for a dead one takes its time to be known as dead: the first manifest, or why there is none,
/// in the order of the addresses, and whether somebody refused.
async fn ask_all(
    identity: &Keypair,
    addresses: Vec<Multiaddr>,
    credentials: Option<&Credentials>,
) -> Result<RunManifest, (Vec<String>, Option<Refusal>)> {
    let mut tasks = JoinSet::new();
    for (place, address) in addresses.into_iter().enumerate() {
        let (identity, credentials) = (identity.clone(), credentials.cloned());
        tasks.spawn(async move {
            let question = Question { identity: &identity, address: &address, ticket: credentials.as_ref() };
            (place, murmur_network::fetch_manifest(question, FETCH_TIMEOUT).await)
        });
    }
    let (mut failures, mut refused) = (Vec::new(), None);
    while let Some(Ok((place, fetched))) = tasks.join_next().await {
        match fetched {
            Ok((manifest, _)) => return Ok(manifest),
            Err(error) => {
                failures.push((place, error.to_string()));
                if let FetchError::Refused { refusal, .. } = error {
                    refused = Some(refusal);
                }
            }
        }
    }
    failures.sort();
    Err((failures.into_iter().map(|(_, reason)| reason).collect(), refused))
}

/// The node's own identity where it has one already, because a member's lists may admit it by that; else one only to ask
/// with: a new one belongs in a directory that is named after the run.
fn asking_identity(settings: &NodeSettings) -> Keypair {
    let path = settings.checkpoint.directory.join("identity.key");
    let is_known = !settings.checkpoint.directory.as_os_str().is_empty() && path.exists();
    let own = is_known.then(|| murmur_network::load_or_create(&path).ok()).flatten();
    own.unwrap_or_else(Keypair::generate_ed25519)
}

/// The run of this node's data directory, where it is the ticket's.
fn claimed_run(settings: &NodeSettings, expected: Option<RunId>) -> Option<RunManifest> {
    let directory = &settings.checkpoint.directory;
    let manifest = DataDirectory::claimed_manifest(directory).filter(|_| !directory.as_os_str().is_empty())?;
    expected.is_none_or(|expected| expected == manifest.run_id()).then_some(manifest)
}
