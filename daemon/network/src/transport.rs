//! How bytes reach another machine: TCP with TLS or Noise and yamux, or QUIC where that is not there in time; names are looked up
//! in DNS. Where neither reaches, a circuit through a relay carries messages.
//!
//! Boxed, because each combination of transport and behaviour would otherwise be compiled again.

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::{Transport, dns, quic, relay, tcp, yamux};

use crate::bounds::{DIAL_TIMEOUT, STREAMS_PER_CONNECTION_MAX};
pub use crate::dial_filter::BoxedTransport;
use crate::dial_filter::DialFilter;
use crate::security::{Security, SecurityError};
use crate::tcp_first::TcpFirst;
use crate::traffic::{Counted, CountedMuxer, TrafficCounter};

/// The transport could not be built.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare encryption: {0}")]
pub struct TransportError(#[from] SecurityError);

/// Builds the transport of a node with this identity. All traffic is added to `counter`.
///
/// # Errors
/// When no certificate can be made for the identity.
pub fn build(identity: &Keypair, counter: &TrafficCounter) -> Result<BoxedTransport, TransportError> {
    Ok(direct(identity, &Security::new(identity)?, counter))
}

/// The same behind a filter of dials, and with circuits through relays. Their bytes are counted where they travel: on the connection
/// to the relay.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_guarded(
    identity: &Keypair,
    counter: &TrafficCounter,
    filter: Option<DialFilter>,
    circuits: Option<relay::client::Transport>,
) -> Result<BoxedTransport, TransportError> {
    let security = Security::new(identity)?;
    let direct = direct(identity, &security, counter);
    let direct = match filter {
        Some(filter) => filter.guard(direct).boxed(),
        None => direct,
    };
    let Some(circuits) = circuits else { return Ok(direct) };
    let circuits = circuits
        .upgrade(Version::V1Lazy)
        .authenticate(security.clone())
        .multiplex(multiplexing())
        .timeout(DIAL_TIMEOUT)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    // Circuits first: to TCP, the address of a circuit looks like that of its relay.
    Ok(circuits.or_transport(direct).map(|either, _| either.into_inner()).boxed())
}

fn multiplexing() -> yamux::Config {
    let mut multiplexing = yamux::Config::default();
    multiplexing.set_max_num_streams(STREAMS_PER_CONNECTION_MAX);
    multiplexing
}

fn direct(identity: &Keypair, security: &Security, counter: &TrafficCounter) -> BoxedTransport {
    // Whatever the parts allow themselves, a dial ends in time: looking up a name has no limit of its own.
    let in_time = |names| TransportTimeout::with_outgoing_timeout(names, DIAL_TIMEOUT).boxed();
    // The system's resolver needs its configuration file. A machine without one can still dial numbers.
    match dns::tokio::Transport::system(without_names(identity, security, counter)) {
        Ok(transport) => in_time(transport),
        Err(error) => {
            tracing::warn!(%error, "the system's DNS settings cannot be read: addresses with names will not work");
            without_names(identity, security, counter)
        }
    }
}

fn without_names(identity: &Keypair, security: &Security, counter: &TrafficCounter) -> BoxedTransport {
    let (tcp_counter, quic_counter) = (counter.clone(), counter.clone());
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .map(move |stream, _| Counted::new(stream, tcp_counter))
        .upgrade(Version::V1Lazy)
        .authenticate(security.clone())
        .multiplex(multiplexing())
        .timeout(DIAL_TIMEOUT)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let mut quic_config = quic::Config::new(identity);
    quic_config.handshake_timeout = DIAL_TIMEOUT;
    quic_config.max_concurrent_stream_limit = STREAMS_PER_CONNECTION_MAX as u32;
    let quic = quic::tokio::Transport::new(quic_config)
        .map(move |(peer, muxer), _| (peer, StreamMuxerBox::new(CountedMuxer::new(muxer, quic_counter))));
    let both = tcp.or_transport(quic).map(|either, _| either.into_inner()).boxed();
    TcpFirst::new(both).boxed()
}
