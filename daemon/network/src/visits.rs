//! Who is about to connect to this node: dialing it meanwhile would make two connections of one, each with a handshake that
//! takes a second of a slow line.

use std::collections::VecDeque;

use libp2p::swarm::ConnectionId;
use murmur_protocol::Address;
use tokio::time::Instant;

use crate::bounds::{DIAL_TIMEOUT, PENDING_INBOUND_MAX};

/// Where connections that others open come from, until they are there, come to nothing, or would have been given up: the
/// oldest first, at most [`PENDING_INBOUND_MAX`]. Who can be dialed mostly comes from where it listens.
#[derive(Debug, Default)]
pub(crate) struct Visits(VecDeque<(ConnectionId, Instant, Address)>);

impl Visits {
    /// Somebody opens a connection.
    pub(crate) fn begin(&mut self, now: Instant, connection: ConnectionId, from: Address) {
        let is_full = self.0.len() >= PENDING_INBOUND_MAX as usize;
        while self.0.front().is_some_and(|(_, since, _)| is_full || now >= *since + DIAL_TIMEOUT) {
            self.0.pop_front();
            if is_full {
                break;
            }
        }
        self.0.push_back((connection, now, from));
    }

    /// It is there, or came to nothing.
    pub(crate) fn end(&mut self, connection: ConnectionId) {
        self.0.retain(|(other, ..)| *other != connection);
    }

    /// Whether somebody who listens at one of `addresses` is about to be connected.
    pub(crate) fn are_from(&self, now: Instant, addresses: &[Address]) -> bool {
        let is_under_way = |since: &Instant| now < *since + DIAL_TIMEOUT;
        self.0.iter().any(|(_, since, from)| is_under_way(since) && addresses.contains(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_about_to_connect_is_not_dialed_until_that_fails() {
        let (mut visits, now) = (Visits::default(), Instant::now());
        let address = |port: usize| Address::new(format!("/ip4/10.0.0.1/tcp/{port}")).expect("an address");
        let both = [address(1), address(2)];
        visits.begin(now, ConnectionId::new_unchecked(7), address(2));
        assert!(visits.are_from(now, &both) && !visits.are_from(now, &both[..1]));
        assert!(!visits.are_from(now + DIAL_TIMEOUT, &both), "it takes too long");
        visits.end(ConnectionId::new_unchecked(7));
        assert!(!visits.are_from(now, &both), "it came to nothing");
        for port in 0..=PENDING_INBOUND_MAX as usize {
            visits.begin(now, ConnectionId::new_unchecked(port), address(1000 + port));
        }
        assert_eq!(visits.0.len(), PENDING_INBOUND_MAX as usize);
        assert!(!visits.are_from(now, &[address(1000)]) && visits.are_from(now, &[address(1001)]));
    }
}
