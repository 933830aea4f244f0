//! Asking a node for its run's manifest: how a joiner with only an address learns what it joins.

use std::time::Duration;

use futures::StreamExt;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, Swarm, SwarmEvent};
use murmur_protocol::handshake::{ClockOffset, Credentials, Greeting, Refusal, manifest_from_answer};
use murmur_protocol::{PeerId, RunManifest};
use tokio::time::timeout;

use crate::address::{split_peer, to_core_peer};
use crate::behaviour::Behaviour;
use crate::connectivity::Connectivity;
use crate::dialing::describe;
use crate::discovery::stranger::{SILENCE, Stranger, stranger_at};
use crate::handshake::gate::{Gate, refusal_of_dial};
use crate::handshake::{Introduction, NoAnswer, introduce};
use crate::identity::peer_id;
use crate::network::new_swarm;
use crate::streams::ConnectionStreams;
use crate::traffic::TrafficCounter;
use crate::transport::TransportError;

/// Why no manifest could be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Encryption could not be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The node cannot be reached.
    #[error("cannot reach {0}: {1}")]
    Unreachable(Multiaddr, String),
    /// Another program answers there: which, as far as it tells.
    #[error("cannot reach {0}: {1}")]
    OtherProgram(Multiaddr, String),
    /// The node takes part in another run than the ticket says, or sent no manifest.
    #[error("the node at {0} {1}")]
    Refused(Multiaddr, Refusal),
    /// It took longer than the limit given.
    #[error("no answer from {0} within {seconds} s", seconds = .1.as_secs_f32())]
    TimedOut(Multiaddr, Duration),
}

/// What is asked, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who asks: a member's lists may admit only peers that they name.
    pub identity: &'a Keypair,
    /// Where; ends in `/p2p/…` where only that peer will do.
    pub address: &'a Multiaddr,
    /// What a ticket says of the run. Without it any open run will do, and a closed one tells nothing.
    pub ticket: Option<&'a Credentials>,
}

/// What a node has told.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Its run.
    pub manifest: RunManifest,
    /// Who it is.
    pub peer: PeerId,
    /// How far its clock is from this machine's.
    pub clock: ClockOffset,
}

/// Dials a node, asks for the manifest of its run, and hangs up.
///
/// # Errors
/// When the node cannot be reached in time, is no murmur node, takes part in another run or does not tell strangers of
/// its run.
pub async fn fetch_manifest(question: Question<'_>, timeout_after: Duration) -> Result<Told, FetchError> {
    // A node behind a NAT may be asked through its relay, so circuits are all that is on.
    let asking = Connectivity { nat: true, ..Connectivity::OFF };
    let gate = question.ticket.and_then(|ticket| Gate::new(question.identity, ticket));
    let swarm = new_swarm(question.identity, None, gate, &asking, None, &TrafficCounter::default())?;
    let late = || Err(FetchError::TimedOut(question.address.clone(), timeout_after));
    let told = timeout(timeout_after, fetch(swarm, question)).await.unwrap_or_else(|_| late());
    match told {
        Err(FetchError::Unreachable(address, reason)) => Err(match stranger_at(&address).await {
            Some(Stranger::Program(program)) => FetchError::OtherProgram(address, program.to_owned()),
            // A daemon on a machine that stands still for some seconds looks like this, too.
            Some(Stranger::Silent) => FetchError::Unreachable(address, SILENCE.to_owned()),
            None => FetchError::Unreachable(address, reason),
        }),
        told => told,
    }
}

async fn fetch(mut swarm: Swarm<Behaviour>, question: Question<'_>) -> Result<Told, FetchError> {
    let Question { identity, address, ticket } = question;
    let unreachable = |reason: String| FetchError::Unreachable(address.clone(), reason);
    let (peer, place) = split_peer(address.clone());
    let options = match peer {
        Some(peer) => DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(vec![place]).build(),
        None => DialOpts::unknown_peer_id().address(place).build(),
    };
    let dial = options.connection_id();
    swarm.dial(options).map_err(|error| unreachable(describe(&error)))?;
    let refused = |refusal: Refusal| FetchError::Refused(address.clone(), refusal);
    let (peer, streams) = connected(&mut swarm, dial).await.map_err(|error| match error {
        NoAnswer::Refused(refusal) => refused(refusal),
        NoAnswer::Lost(reason) => unreachable(reason),
    })?;
    let ends = (peer_id(identity), peer);
    let exchange = introduce(&streams.opener, ticket, ends, |proof| Greeting::Ask { proof });
    // The swarm has to be polled for the stream to move.
    let answered = tokio::select! {
        answered = exchange => answered,
        never = drive(&mut swarm) => match never {},
    };
    let Introduction { control, answer, clock } = answered.map_err(|error| match error {
        NoAnswer::Refused(refusal) => refused(refusal),
        NoAnswer::Lost(reason) => unreachable(format!("the connection was lost: {reason}")),
    })?;
    drop(control);
    let manifest = manifest_from_answer(&answer, ticket.map(|ticket| ticket.run)).map_err(refused)?;
    Ok(Told { manifest, peer, clock })
}

/// Waits for the outcome of a dial. A connection to a relay may come before it; its streams stay with the behaviour, and
/// so it lasts.
async fn connected(swarm: &mut Swarm<Behaviour>, dial: ConnectionId) -> Result<(PeerId, ConnectionStreams), NoAnswer> {
    let lost = |reason: &str| NoAnswer::Lost(reason.to_owned());
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } if connection_id == dial => {
                let peer = to_core_peer(&peer_id).ok_or_else(|| lost("the peer there has no ed25519 identity"))?;
                let streams = swarm.behaviour_mut().streams.take(connection_id);
                return Ok((peer, streams.ok_or_else(|| lost("the connection was lost at once"))?));
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } if connection_id == dial => {
                return Err(match refusal_of_dial(&error) {
                    Some((_, refusal)) => NoAnswer::Refused(refusal),
                    None => NoAnswer::Lost(describe(&error)),
                });
            }
            _ => {}
        }
    }
}

async fn drive(swarm: &mut Swarm<Behaviour>) -> std::convert::Infallible {
    loop {
        swarm.select_next_some().await;
    }
}
