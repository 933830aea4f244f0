//! The gate of a closed run: on every connection, before libp2p's swarm has it, both sides prove that they know the
//! run's secret.
//!
//! It is a part of the transport, over TCP, QUIC and circuits alike, so nothing that a node speaks (identify, the run's
//! table, relaying, probes, pings) exists for a stranger, and nothing above has to know. A stranger finds a single
//! protocol, that of the handshake, and hears on it that the run is closed. A pre-shared key below the encryption, which
//! libp2p has for TCP, could not say that, and there is none for QUIC.

use std::io;
use std::sync::Arc;

use libp2p::PeerId as Libp2pPeerId;
use libp2p::core::muxing::{StreamMuxerBox, SubstreamBox};
use libp2p::core::transport::TransportError;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::{ConnectedPoint, Transport};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{DialError, ListenError};
use multistream_select::{NegotiationError, Version, dialer_select_proto};
use murmur_protocol::PeerId;
use murmur_protocol::codec;
use murmur_protocol::handshake::{self, Credentials, Greeting, Parties, Refusal, Stamps};

use super::{
    NO_RANDOMNESS, NoAnswer, NoWelcome, Talk, converse, dismiss, garbage, is_inbound, read_hello, read_reply, say,
};
use crate::access::fresh_nonce;
use crate::address::to_core_peer;
use crate::bounds::DIAL_TIMEOUT;
use crate::error_chain::causes;
use crate::identity::peer_id;
use crate::muxing::{driven, first_stream, open_stream};
use crate::streams::{CONTROL_PROTOCOL, OpenError};
use crate::transport::BoxedTransport;

/// Lets nobody through who does not know the run's secret.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    me: PeerId,
    credentials: Arc<Credentials>,
}

/// Why a connection came to nothing at the gate.
#[derive(Debug, thiserror::Error)]
enum Turned {
    /// One of both sides refused the other.
    #[error("the peer there {refusal}")]
    Away { peer: PeerId, refusal: Refusal },
    /// It is not who was dialed: nothing is said to it.
    #[error("another peer answers there, {0}")]
    OtherPeer(Libp2pPeerId),
    /// It could have no part in any run.
    #[error("the peer there has no ed25519 identity")]
    OtherKey,
    /// The connection was lost first.
    #[error("the connection was lost during the handshake: {0}")]
    Lost(String),
}

impl Gate {
    /// Of this node's run, where that is closed.
    pub(crate) fn new(identity: &Keypair, credentials: &Credentials) -> Option<Gate> {
        let has_secret = credentials.secret.is_some();
        has_secret.then(|| Gate { me: peer_id(identity), credentials: Arc::new(credentials.clone()) })
    }

    /// Puts the gate before a transport.
    pub(crate) fn guard(self, transport: BoxedTransport) -> BoxedTransport {
        let guarded = transport
            .and_then(move |(peer, mut muxer): (Libp2pPeerId, StreamMuxerBox), endpoint| async move {
                self.pass(peer, &mut muxer, &endpoint).await.map_err(io::Error::other)?;
                Ok::<_, io::Error>((peer, muxer))
            })
            .map_err(|error| error.into_inner());
        TransportTimeout::new(guarded, DIAL_TIMEOUT).boxed()
    }

    async fn pass(
        &self,
        peer: Libp2pPeerId,
        muxer: &mut StreamMuxerBox,
        endpoint: &ConnectedPoint,
    ) -> Result<(), Turned> {
        if let ConnectedPoint::Dialer { address, .. } = endpoint
            && let Some(Protocol::P2p(wanted)) = address.iter().last()
            && wanted != peer
        {
            return Err(Turned::OtherPeer(peer));
        }
        let peer = to_core_peer(&peer).ok_or(Turned::OtherKey)?;
        let lost = |error: io::Error| Turned::Lost(error.to_string());
        let passed = if is_inbound(endpoint) {
            let mut control = first_stream(muxer, CONTROL_PROTOCOL).await.map_err(lost)?;
            driven(muxer, self.admit(peer, &mut control)).await
        } else {
            let stream = open_stream(muxer).await.map_err(lost)?;
            driven(muxer, self.enter(peer, stream)).await
        };
        match passed.map_err(lost)? {
            Ok(()) => Ok(()),
            Err(NoWelcome::Refused(refusal)) => Err(Turned::Away { peer, refusal }),
            Err(NoWelcome::Lost(reason)) => Err(Turned::Lost(reason)),
            Err(NoWelcome::Asked) => unreachable!("no manifest is told at the gate"),
        }
    }

    /// The dialer's part.
    async fn enter(&self, listener: PeerId, stream: SubstreamBox) -> Result<(), NoWelcome> {
        let select = dialer_select_proto(stream, [CONTROL_PROTOCOL], Version::V1).await;
        let (_, mut control) = select.map_err(|error| match error {
            NegotiationError::Failed => NoAnswer::from(OpenError::Unsupported(CONTROL_PROTOCOL)),
            NegotiationError::ProtocolError(error) => NoAnswer::Lost(error.to_string()),
        })?;
        let greeting = |proof| Greeting::Enter { proof };
        let (answer, _) = converse(&mut control, Some(&self.credentials), (self.me, listener), greeting).await?;
        Ok(handshake::judge_entered(&answer)?)
    }

    /// The listener's part.
    async fn admit(&self, dialer: PeerId, control: &mut impl Talk) -> Result<(), NoWelcome> {
        let (dialer_nonce, _) = read_hello(control).await?;
        let listener_nonce = fresh_nonce().ok_or_else(|| NoWelcome::Lost(NO_RANDOMNESS.to_owned()))?;
        let parties = Parties { dialer, listener: self.me, dialer_nonce, listener_nonce };
        // A stranger is not told the time either.
        let challenge = handshake::challenge(&self.credentials, &parties, Stamps::default());
        say(control, &codec::encode(&challenge)).await?;
        let greeting: Greeting = codec::decode(&read_reply(control).await?).map_err(garbage)?;
        let (judgement, answer) = handshake::judge_entry(&self.credentials, &parties, &greeting);
        let answer = codec::encode(&answer);
        match judgement {
            Ok(()) => say(control, &answer).await,
            Err(refusal) => Err(dismiss(control, &answer, refusal).await),
        }
    }
}

/// Who was refused at the gate, or refused this node there, where a dial came to nothing for that.
pub(crate) fn refusal_of_dial(error: &DialError) -> Option<(PeerId, Refusal)> {
    let DialError::Transport(failures) = error else { return None };
    failures.iter().find_map(|(_, failure)| refusal(failure))
}

/// The same of a connection that the other side opened.
pub(crate) fn refusal_of_visit(error: &ListenError) -> Option<(PeerId, Refusal)> {
    let ListenError::Transport(failure) = error else { return None };
    refusal(failure)
}

fn refusal(failure: &TransportError<io::Error>) -> Option<(PeerId, Refusal)> {
    let TransportError::Other(error) = failure else { return None };
    causes(error).find_map(|cause| match cause.downcast_ref() {
        Some(Turned::Away { peer, refusal }) => Some((*peer, refusal.clone())),
        _ => None,
    })
}
