//! Pruning: connections are renewed one by one, and those who find no room are sent on.
//!
//! A node whose connections are those that it began with keeps the shape of the bootstrap: a star, a chain. So it
//! connects to a new random member now and then, and prunes its oldest surplus connection. That is announced, with
//! a sample of other members (as HyParView's DISCONNECT is, Leitão et al. 2007): the other side hangs up, holds it
//! against nobody, and has whom to turn to.

use super::*;

impl Membership {
    /// Connects to somebody new and prunes surplus connections.
    pub(super) fn rotate(&mut self, now: Time, is_busy: impl Fn(PeerId) -> bool, out: &mut Outbox) {
        let surplus = self.connections.open_count().saturating_sub(CONNECTIONS_SURPLUS);
        for peer in self.connections.to_shed(now, surplus.div_ceil(2).min(SHED_MAX), is_busy) {
            let peers = self.sample(now, peer);
            out.send(peer, Message::Prune { peers });
            let connection = self.connections.get_mut(peer).expect("just chosen among the connected");
            connection.state = ConnectionState::Pruned(now + PRUNE_GRACE);
            connection.excuse(NEVER);
            self.prunes_end_at = self.prunes_end_at.min(now + PRUNE_GRACE);
        }
        // Whoever has too few searches anyway.
        if self.connections.healthy_count(now) >= CONNECTIONS_WANTED {
            self.dial_one_more(now, out);
        }
    }

    /// Tells a peer for whom there is no room whom else to turn to.
    pub(super) fn turn_away(&mut self, now: Time, peer: PeerId, out: &mut Outbox) {
        if self.lobby.contains_key(&peer) {
            return;
        }
        let peers = self.sample(now, peer);
        out.send(peer, Message::Prune { peers });
        if self.lobby.len() >= LOBBY_MAX {
            out.push(NetworkOrder::Disconnect { peer });
            return;
        }
        self.lobby.insert(peer, now + PRUNE_GRACE);
        self.prunes_end_at = self.prunes_end_at.min(now + PRUNE_GRACE);
    }

    /// Hangs up on those who have not done so. A peer with which something has begun meanwhile stays.
    pub(super) fn end_partings(&mut self, now: Time, is_busy: impl Fn(PeerId) -> bool, out: &mut Outbox) {
        for (peer, _) in self.lobby.extract_if(.., |_, until| *until <= now) {
            out.push(NetworkOrder::Disconnect { peer });
        }
        let mut next = self.lobby.values().copied().fold(NEVER, Time::min);
        let parting: Vec<PeerId> = self.connections.iter().map(|(peer, _)| peer).collect();
        for peer in parting {
            let connection = self.connections.get_mut(peer).expect("just listed");
            match connection.state {
                ConnectionState::Pruned(until) if until > now => next = next.min(until),
                ConnectionState::Pruned(_) if is_busy(peer) => connection.keep(now),
                ConnectionState::Pruned(_) => {
                    connection.state = ConnectionState::Closing;
                    out.push(NetworkOrder::Disconnect { peer });
                }
                ConnectionState::Open | ConnectionState::Closing => {}
            }
        }
        self.prunes_end_at = next;
    }
}
