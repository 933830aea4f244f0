//! `murmur id`: who this node is, and where it is found while it runs.

use std::path::{Path, PathBuf};

use murmur_protocol::{PeerId, Ticket};
use serde_json::json;

use super::client::Client;
use super::node;
use crate::cli::IdOptions;
use crate::console::{Console, note, print_line};
use crate::daemon::invitation::Invitation;
use crate::failure::{ExitCode, Failure};
use crate::store::Run;

pub(super) fn run(options: &IdOptions) -> anyhow::Result<()> {
    let directory = options.run.as_ref().or(options.data_dir.as_ref()).map(|run| node_of(run));
    let client = Client::find(options.address.as_deref(), directory.as_deref());
    let running = client.and_then(|client| client.get::<Invitation>("ticket"));
    let kept = directory.as_deref().map(kept_identity).transpose()?;
    let (peer, addresses) = match (kept, running.map(|invitation| invitation.ticket(None))) {
        // Another daemon may answer there.
        (Some(peer), Ok(Some(ticket))) if ticket.peer == peer => (peer, addresses(&ticket)),
        (Some(peer), _) => (peer, Vec::new()),
        (None, Ok(Some(ticket))) => (ticket.peer, addresses(&ticket)),
        (None, Ok(None)) => {
            return Err(Failure::new(ExitCode::Network, "the daemon names no peer")
                .hint("it may have no address yet, or be of another version of murmur")
                .into());
        }
        (None, Err(failure)) => {
            return Err(failure.hint("name the run of a node that does not run: murmur id RUN").into());
        }
    };
    if options.format == Console::Json {
        print_line(&json!({ "peer": peer.to_string(), "addresses": addresses }).to_string());
        return Ok(());
    }
    print_line(&peer.to_string());
    addresses.iter().for_each(|address| note(&format!("address     {address}")));
    Ok(())
}

/// The data directory of a run's first node. A folder that is no run may still hold an identity.
fn node_of(run: &Path) -> PathBuf {
    Run::named(run).and_then(|run| run.nodes.into_iter().next()).unwrap_or_else(|| run.to_owned())
}

/// The identity in a data directory. One that is not there is not made: the folder may be misspelt.
fn kept_identity(directory: &Path) -> Result<PeerId, Failure> {
    let path = directory.join("identity.key");
    if !path.exists() {
        let message = format!("{} holds no identity", directory.display());
        let hint = "`murmur list` shows the runs of this machine; a node makes its identity when it starts";
        return Err(Failure::new(ExitCode::Files, message).hint(hint));
    }
    node::identity_at(&path).map(|identity| murmur_network::peer_id(&identity))
}

fn addresses(ticket: &Ticket) -> Vec<String> {
    ticket.addresses.iter().map(|address| format!("{address}/p2p/{}", ticket.peer)).collect()
}
