//! The captain's side: reaches a helper at one of its addresses.

use libp2p::core::Endpoint;
use libp2p::core::Transport;
use libp2p::core::muxing::{StreamMuxerBox, SubstreamBox};
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use multistream_select::{Negotiated, NegotiationError, Version, dialer_select_proto};
use murmur_protocol::{HelperLine, PeerId};
use tokio::time::timeout;

use super::greeting::{NoWelcome, knock};
use super::link::TeamLink;
use super::{GREETING_TIMEOUT, TEAM_PROTOCOL};
use crate::address::{to_core_peer, to_dialable, to_libp2p_peer};
use crate::identity::peer_id;
use crate::muxing::{driven, open_stream};
use crate::rate_limit::Throttle;
use crate::traffic::TrafficCounter;
use crate::transport;

/// Why a helper was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// Nobody answers at any of its addresses.
    #[error("the helper cannot be reached: {0}")]
    Unreachable(String),
    /// Another machine answers there, or one that knows nothing of the line.
    #[error("the machine there is not the helper of this line")]
    OtherMachine,
    /// It has another captain.
    #[error("the helper is taken: it has another captain")]
    Taken,
    /// It is of another version.
    #[error("{0}")]
    Version(String),
}

/// Dials a helper at its addresses, one after the other. Bodies of up to `body_bytes_max` bytes are taken from it, its traffic is
/// added to `counter`, and what is said after the greeting keeps to the throttle.
///
/// # Errors
/// When it is not reached, or does not take this captain: of several addresses what the most telling one has given.
pub async fn dial(
    identity: &Keypair,
    line: &HelperLine,
    (counter, throttle): (&TrafficCounter, &Throttle),
    body_bytes_max: u64,
) -> Result<TeamLink, DialError> {
    let mut failure = DialError::Unreachable("its line names no address that this machine can dial".to_owned());
    for address in line.addresses.iter().filter_map(to_dialable) {
        let dialed = dial_at(identity, line, address, (counter, throttle), body_bytes_max);
        match timeout(GREETING_TIMEOUT, dialed).await {
            Ok(Ok(link)) => return Ok(link),
            Ok(Err(error)) => failure = told(failure, error),
            Err(_) => failure = told(failure, DialError::Unreachable("it does not answer".to_owned())),
        }
    }
    Err(failure)
}

/// What says more: that somebody answers.
fn told(before: DialError, now: DialError) -> DialError {
    if matches!(now, DialError::Unreachable(_)) && !matches!(before, DialError::Unreachable(_)) { before } else { now }
}

async fn dial_at(
    identity: &Keypair,
    line: &HelperLine,
    address: libp2p::Multiaddr,
    (counter, throttle): (&TrafficCounter, &Throttle),
    body_bytes_max: u64,
) -> Result<TeamLink, DialError> {
    let unreachable = |error: String| DialError::Unreachable(error);
    let wanted = to_libp2p_peer(line.helper).ok_or(DialError::OtherMachine)?;
    let mut transport = transport::build(identity, counter).map_err(|error| unreachable(error.to_string()))?;
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let place = address.clone().with(Protocol::P2p(wanted));
    let dialed = transport.dial(place, options).map_err(|error| unreachable(format!("{address}: {error}")))?;
    let (peer, mut muxer) = dialed.await.map_err(|error| unreachable(format!("{address}: {error}")))?;
    if peer != wanted {
        return Err(DialError::OtherMachine);
    }
    let helper: PeerId = to_core_peer(&peer).ok_or(DialError::OtherMachine)?;
    let stream = greet(&mut muxer, (peer_id(identity), helper), line).await;
    let stream = stream.map_err(|error| match error {
        NoWelcome::Stranger => DialError::OtherMachine,
        NoWelcome::Taken => DialError::Taken,
        NoWelcome::Version(_) => DialError::Version(error.to_string()),
        NoWelcome::Lost(reason) => unreachable(format!("{address}: {reason}")),
    })?;
    Ok(TeamLink::start(helper, muxer, stream, (body_bytes_max, throttle.clone())))
}

async fn greet(
    muxer: &mut StreamMuxerBox,
    parties: (PeerId, PeerId),
    line: &HelperLine,
) -> Result<Negotiated<SubstreamBox>, NoWelcome> {
    let stream = open_stream(muxer).await?;
    let conversation = async {
        let select = dialer_select_proto(stream, [TEAM_PROTOCOL], Version::V1).await;
        let (_, mut stream) = select.map_err(|error| match error {
            NegotiationError::Failed => NoWelcome::Stranger,
            error => NoWelcome::Lost(error.to_string()),
        })?;
        knock(&mut stream, parties, &line.secret).await?;
        Ok(stream)
    };
    driven(muxer, conversation).await?
}
