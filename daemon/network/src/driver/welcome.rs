//! The part of the swarm task that gives members their places, and tells those for whom there is none whom else to turn to.

use murmur_protocol::bounds::{ADDRESSES_TOLD_MAX, PEERS_TOLD_MAX};
use murmur_protocol::message::{Descriptor, KnownPeer, Message};
use murmur_protocol::{Event, PeerId, Profile};
use tokio::sync::{mpsc, oneshot};

use super::{Driver, MemberHandle, TaskEnd};
use crate::bounds::{HEARD_WITHIN, MEMBER_ORDERS_MAX};
use crate::handshake::{Dialed, Link, turn_away};
use crate::member::{Member, MemberOrder};
use crate::places::Proven;
use crate::sources::{Source, has_place};

impl Driver {
    /// Gives a connection to its peer's member, or makes the peer a member.
    pub(super) fn welcome(&mut self, peer: PeerId, link: Link) {
        if self.is_closing() {
            return;
        }
        self.dial_filter.met(link.scope);
        let Some(member) = self.members.get_mut(&peer) else {
            self.start_member(peer, link);
            return;
        };
        if let Some(Dialed { by_address: true, addresses }) = &link.dialed {
            let (addresses, reason) = (addresses.clone(), "already connected to the peer there".to_owned());
            // Only the side that dialed both closes one: if both sides could, both connections might go.
            let redundant = member.dialed;
            self.emit(Event::DialFailed { peer: Some(peer), addresses, reason });
            if redundant {
                return;
            }
        }
        let Some(member) = self.members.get_mut(&peer) else { return };
        member.dialed |= link.dialed.is_some();
        match member.orders.try_send(MemberOrder::AddLink(Box::new(link))) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(MemberOrder::AddLink(link))) => member.waiting.push(*link),
            Err(_) => tracing::debug!(%peer, "closed a spare connection: the peer's queue is full"),
        }
    }

    fn start_member(&mut self, peer: PeerId, link: Link) {
        let members = self.members.values().map(|member| (member.source, member.proven.is_proven()));
        // Whom this node has dialed it wants.
        if link.dialed.is_none() && !has_place(members, link.source) {
            self.turn_away(peer, link);
            return;
        }
        let (orders, order_queue) = mpsc::channel(MEMBER_ORDERS_MAX);
        let (close, closed) = oneshot::channel();
        let (dialed, source, proven) = (link.dialed.is_some(), link.source, Proven::default());
        let network = source.map(|source| source.network);
        let member = Member::new(self.shared.clone(), peer, (network, proven.clone()), order_queue, closed);
        let mut addresses = link.addresses.clone();
        addresses.truncate(ADDRESSES_TOLD_MAX);
        let (close, waiting) = (Some(close), Vec::new());
        self.members.insert(peer, MemberHandle { orders, close, proven, source, addresses, dialed, waiting });
        self.tasks.spawn(async move { TaskEnd::Member(member.run(link).await) });
    }

    /// Parts from somebody who comes from where too many have come from, in the words of the core where it has no place for
    /// anybody: the other side holds it against nobody, and dials whom it is told of.
    fn turn_away(&mut self, peer: PeerId, link: Link) {
        let Ok(parting) = self.partings.clone().try_acquire_owned() else {
            tracing::debug!(%peer, "hung up on: too many others are being turned away");
            return;
        };
        let others = self.others_than(peer, link.source);
        tracing::debug!(%peer, others = others.len(), "turned away: there are too many members from there");
        self.tasks.spawn(async move {
            turn_away(link, &Message::Prune { peers: others }).await;
            drop(parting);
            TaskEnd::TurnedAway
        });
    }

    /// Whom somebody may turn to who comes from there: rather members elsewhere. Each is told of others, since ids are as random
    /// as what any two of them differ in.
    fn others_than(&self, peer: PeerId, source: Option<Source>) -> Vec<Descriptor> {
        let mut others: Vec<_> = self.members.iter().filter(|(_, member)| !member.addresses.is_empty()).collect();
        others.sort_by_cached_key(|(other, member)| {
            let (one, other) = (peer.as_bytes(), other.as_bytes());
            let distance: [u8; 32] = std::array::from_fn(|index| one[index] ^ other[index]);
            (member.source == source, distance)
        });
        let describe = |(other, member): (&PeerId, &MemberHandle)| Descriptor {
            known: KnownPeer { peer: *other, addresses: member.addresses.clone() },
            age_seconds: HEARD_WITHIN.as_secs() as u32,
            profile: Profile::default(),
        };
        others.into_iter().take(PEERS_TOLD_MAX).map(describe).collect()
    }
}
