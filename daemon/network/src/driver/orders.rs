//! What the core orders: dials, messages and transfers, handed to whoever carries them out.

use murmur_protocol::message::{Message, TransferHeader};
use murmur_protocol::{Event, Payload, PeerId, TransferId};

use tokio::time::Instant;

use super::Driver;
use crate::bounds::DIALS_MAX;
use crate::dialing::Dial;
use crate::member::{MemberOrder, OutgoingTransfer};
use crate::places::Place;
use crate::sources::Source;
use murmur_protocol::NetworkOrder;

impl Driver {
    pub(super) fn obey(&mut self, order: NetworkOrder) {
        match order {
            NetworkOrder::Dial { peer, addresses } => {
                let is_visiting = self.visits.are_from(Instant::now(), &addresses);
                let dial = Dial::new(peer, addresses, &self.views.listen.borrow());
                if peer == Some(self.shared.me) {
                    self.emit(dial.refuse("that is this node itself"));
                } else if peer.is_some_and(|peer| !self.shared.access.admits(peer)) {
                    self.emit(dial.refuse("network.allow or network.block of this node excludes it"));
                } else if self.dials.len() >= DIALS_MAX {
                    self.emit(dial.refuse("too many dials are under way"));
                } else if peer.is_some_and(|peer| self.is_taken(peer)) {
                    self.emit(dial.refuse("already connected, or being dialed"));
                } else if is_visiting {
                    self.emit(dial.refuse("it is about to connect"));
                } else if let Some(dial) = self.use_auxiliary(dial) {
                    self.dial(dial);
                }
            }
            NetworkOrder::Disconnect { peer } => self.disconnect(peer),
            NetworkOrder::Send { peer, message } => self.send(peer, message),
            NetworkOrder::StartTransfer { transfer, peer, header, payload } => {
                if let Err(reason) = self.start_transfer(peer, transfer, header, payload) {
                    self.emit(Event::TransferFailed { transfer, reason: reason.to_owned() });
                }
            }
        }
    }

    /// Hands a transfer to its peer's member; else says why not.
    fn start_transfer(
        &self,
        peer: PeerId,
        transfer: TransferId,
        header: TransferHeader,
        payload: Payload,
    ) -> Result<(), &'static str> {
        let member = self.members.get(&peer).ok_or("the peer is not connected")?;
        let place = match header {
            TransferHeader::State { .. } => self.part_places.clone().try_acquire_owned().ok().map(Place::from),
            _ => self.places.take(&member.proven, member.source.and_then(Source::public_network)),
        };
        let place = place.ok_or("too many transfers are under way")?;
        let outgoing = OutgoingTransfer { transfer, header, payload, place };
        let order = MemberOrder::StartTransfer(outgoing);
        member.orders.try_send(order).map_err(|_| "the peer is about to disconnect, or its queue is full")
    }

    fn send(&mut self, peer: PeerId, message: Message) {
        if matches!(message, Message::RequestState { .. }) {
            self.shared.copying.hear();
        }
        let member = self.members.get(&peer);
        if member.is_none_or(|member| member.orders.try_send(MemberOrder::Send(message)).is_err()) {
            self.shared.count_dropped_message(peer);
        }
    }
}
