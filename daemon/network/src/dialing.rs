//! Dials under way, and why they fail, in words for people.

use std::collections::VecDeque;
use std::error::Error;
use std::io;

use libp2p::core::transport::{PortUse, TransportError};
use libp2p::swarm::DialError;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, connection_limits, dns};
use murmur_protocol::{Address, Event, PeerId};

use crate::address::{to_dialable, to_libp2p_peer};
use crate::bounds::{DIAL_ADDRESSES_MAX, DIAL_TIMEOUT};
use crate::error_chain::causes;
use crate::handshake::Dialed;
use crate::security::{SecurityError, TlsError};

/// One dial of the core's: all addresses at once where the peer is known, one after the other where it is not (they may
/// belong to different peers).
#[derive(Debug)]
pub(crate) struct Dial {
    peer: Option<PeerId>,
    /// The addresses as the core gave them, by which it recognises its dial.
    ordered: Vec<Address>,
    untried: VecDeque<Multiaddr>,
    /// What the attempt under way dials.
    trying: Vec<Multiaddr>,
    /// The port that the next attempt comes from: our listening port, unless the last attempt failed because of it.
    port: PortUse,
    reasons: Vec<String>,
}

impl Dial {
    /// Sorts out the addresses that this node cannot dial, and its own.
    pub(crate) fn new(peer: Option<PeerId>, ordered: Vec<Address>, own: &[Multiaddr]) -> Dial {
        let mut untried = VecDeque::new();
        for address in ordered.iter().take(DIAL_ADDRESSES_MAX) {
            match to_dialable(address) {
                Some(address) if own.contains(&address) => tracing::debug!(%address, "skipped an address of our own"),
                Some(address) => untried.push_back(address),
                None => tracing::debug!(%address, "skipped an address that cannot be dialed"),
            }
        }
        Dial { peer, ordered, untried, trying: Vec::new(), port: PortUse::Reuse, reasons: Vec::new() }
    }

    /// What to dial next; `None` where nothing is left.
    pub(crate) fn next_attempt(&mut self) -> Option<DialOpts> {
        if self.port == PortUse::Reuse {
            let together = if self.peer.is_some() { self.untried.len() } else { self.untried.len().min(1) };
            self.trying = self.untried.drain(..together).collect();
        }
        let first = self.trying.first()?.clone();
        let Some(peer) = self.peer else {
            let options = DialOpts::unknown_peer_id().address(first);
            return Some(match self.port {
                PortUse::Reuse => options.build(),
                PortUse::New => options.allocate_new_port().build(),
            });
        };
        let Some(peer) = to_libp2p_peer(peer) else {
            self.reasons.push("that is no peer id".to_owned());
            return None;
        };
        // Whether there is a membership already is known by the driver; connections of other kinds do not matter.
        let options = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(self.trying.clone());
        Some(match self.port {
            PortUse::Reuse => options.build(),
            PortUse::New => options.allocate_new_port().build(),
        })
    }

    /// What the attempt under way dials.
    pub(crate) fn trying(&self) -> &[Multiaddr] {
        &self.trying
    }

    /// Whom it is for, where that is known.
    pub(crate) fn peer(&self) -> Option<PeerId> {
        self.peer
    }

    /// How a connection from this dial came about.
    pub(crate) fn into_dialed(self) -> Dialed {
        Dialed { by_address: self.peer.is_none(), addresses: self.ordered }
    }

    /// Remembers why the last attempt failed.
    ///
    /// Two nodes that dial each other's listening port from their own at the same moment share one TCP connection on
    /// which both are clients, so encryption fails on both. Another program may hold our listening port's number on
    /// another address of this machine, so that no dial can come from it. Either attempt is repeated, once, from a port
    /// of its own.
    pub(crate) fn on_failure(&mut self, error: &DialError) {
        if self.port == PortUse::Reuse && (both_are_clients(error) || is_port_taken(error)) {
            self.port = PortUse::New;
        } else {
            self.port = PortUse::Reuse;
            self.trying.clear();
            self.reasons.push(describe(error));
        }
    }

    /// Gives up for a reason of our own.
    pub(crate) fn refuse(mut self, reason: &str) -> Event {
        self.reasons.push(reason.to_owned());
        self.into_event()
    }

    /// What the core is told when nothing is left to try.
    pub(crate) fn into_event(mut self) -> Event {
        if self.reasons.is_empty() {
            self.reasons.push("there is no address that this node could dial".to_owned());
        }
        self.reasons.dedup();
        Event::DialFailed { peer: self.peer, addresses: self.ordered, reason: self.reasons.join("; ") }
    }
}

/// A dial's error for people.
pub(crate) fn describe(error: &DialError) -> String {
    match error {
        DialError::LocalPeerId { .. } => "that is this node itself".to_owned(),
        DialError::NoAddresses => "there is no address that this node could dial".to_owned(),
        DialError::DialPeerConditionFalse(_) => "already connected, or being dialed".to_owned(),
        DialError::Aborted => "the dial was aborted".to_owned(),
        DialError::WrongPeerId { obtained, .. } => format!("another peer answers there, {obtained}"),
        DialError::Denied { cause } => match cause.downcast_ref::<connection_limits::Exceeded>() {
            Some(exceeded) => format!("too many connections: the limit is {}", exceeded.limit()),
            None => "this node refused the connection".to_owned(),
        },
        DialError::Transport(failures) => match failures.as_slice() {
            [] => "it could not be reached".to_owned(),
            [(_, error)] => describe_transport(error),
            [(_, first), others @ ..] => {
                let reason = describe_transport(first);
                if others.iter().all(|(_, other)| describe_transport(other) == reason) {
                    return reason;
                }
                let line = |(address, error): &(Multiaddr, TransportError<io::Error>)| {
                    format!("{address}: {}", describe_transport(error))
                };
                failures.iter().map(line).collect::<Vec<_>>().join("; ")
            }
        },
    }
}

fn describe_transport(error: &TransportError<io::Error>) -> String {
    match error {
        TransportError::MultiaddrNotSupported(_) => "this node does not speak such an address".to_owned(),
        TransportError::Other(error) => describe_io(error),
    }
}

/// libp2p wraps the cause several times; some layers only keep its text.
fn describe_io(error: &io::Error) -> String {
    let cause = causes(error).last().expect("an error is among its own causes");
    let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    let text = cause.to_string();
    let says = |words: &str| text.to_lowercase().contains(words);
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => "nobody listens there (connection refused)".to_owned(),
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
            format!("there is no way to that network ({text})")
        }
        Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            "something listens there, but it hung up during the handshake".to_owned()
        }
        _ if kind == Some(io::ErrorKind::TimedOut) || says("timed out") || says("timeout") => {
            format!("no answer within {} s", DIAL_TIMEOUT.as_secs())
        }
        _ if causes(error).any(|cause| cause.is::<dns::ResolveError>()) || says("no records found") => {
            "its name cannot be looked up in the DNS".to_owned()
        }
        _ if causes(error).any(|cause| cause.is::<SecurityError>()) => {
            format!("something listens there, but the encryption failed ({text})")
        }
        _ if says("connection refused") => "nobody listens there (connection refused)".to_owned(),
        _ => text,
    }
}

/// Whether the TLS handshake failed as it does where the other side is a client too.
fn both_are_clients(error: &DialError) -> bool {
    has_cause(error, |cause| {
        let failure = cause.downcast_ref::<SecurityError>();
        matches!(failure, Some(SecurityError::Tls(TlsError::Client(_))))
    })
}

/// Whether our listening port's number is taken on another address of this machine. Some layers only keep the text.
fn is_port_taken(error: &DialError) -> bool {
    has_cause(error, |cause| {
        let failure = cause.downcast_ref::<io::Error>();
        failure.is_some_and(|failure| failure.kind() == io::ErrorKind::AddrInUse)
            || cause.to_string().to_lowercase().contains("address already in use")
    })
}

/// Whether one of the addresses could not be reached for a cause that `is_it` knows.
fn has_cause(error: &DialError, is_it: impl Fn(&(dyn Error + 'static)) -> bool) -> bool {
    let DialError::Transport(failures) = error else { return false };
    failures.iter().any(|(_, failure)| match failure {
        TransportError::Other(error) => causes(error).any(&is_it),
        TransportError::MultiaddrNotSupported(_) => false,
    })
}
