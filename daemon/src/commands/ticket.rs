//! `murmur ticket`: a fresh ticket from a running daemon, with the line with which others join.

use murmur_protocol::Ticket;
use serde_json::json;

use super::client::Client;
use super::membership;
use crate::cli::StatusOptions;
use crate::console::{Console, note, print_line};
use crate::daemon::invitation::Invitation;
use crate::failure::{ExitCode, Failure};

pub(super) fn run(options: &StatusOptions) -> anyhow::Result<()> {
    let client = Client::find(options.address.as_deref(), options.run.as_deref())?;
    let invitation: Invitation = client.get("ticket")?;
    let secret = match &invitation.secret_file {
        None => None,
        Some(path) => Some(membership::read(path)?.ok_or_else(|| {
            Failure::new(ExitCode::Files, format!("the run is closed, and its secret is not at {}", path.display()))
                .hint("run this on the daemon's machine, as its user")
        })?),
    };
    let is_closed = secret.is_some();
    let ticket: Ticket = invitation.ticket(secret).ok_or_else(|| {
        let message = format!("the daemon at {} answers without a sound ticket", client.address);
        Failure::new(ExitCode::Network, message).hint("it may have no address yet, or be of another version of murmur")
    })?;
    let join = format!("murmur join {ticket}");
    if options.format == Console::Json {
        let addresses: Vec<String> = ticket.addresses.iter().map(ToString::to_string).collect();
        print_line(
            &json!({
                "ticket": ticket.to_string(),
                "join": join,
                "peer": ticket.peer.to_string(),
                "run": ticket.run.to_string(),
                "addresses": addresses,
                "closed": is_closed,
            })
            .to_string(),
        );
        return Ok(());
    }
    ticket.addresses.iter().for_each(|address| note(&format!("address     {address}")));
    if is_closed {
        note("This ticket holds the secret of a closed run: who has it may join. Others join with:");
    } else {
        note("Others join with:");
    }
    print_line(&join);
    Ok(())
}
