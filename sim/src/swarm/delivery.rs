//! Links opening and breaking, and what travels on them.
//!
//! The two ends of a link learn of its beginning and end at different times, so one side may be connected while the
//! other is not: what is sent meanwhile is lost.

use std::time::Duration;

use murmur_protocol::handshake::Refusal;
use murmur_protocol::{Address, Event, Message, PeerId, TransferId};

use super::Swarm;
use crate::happening::{DialArrived, Happening, Life, TransferArrived};
use crate::host::address_of;
use crate::network::LinkId;
use crate::scenario::HostIndex;

impl Swarm {
    pub(super) fn on_dial_arrived(&mut self, dial: DialArrived) {
        let DialArrived { dialer: (dialer, life), target, expected, addresses } = dial;
        let now = self.queue.now();
        let back = self.network.latency(target, dialer);
        let there = self.peer_of(target);
        let reason = match there {
            _ if target == dialer => Some("that is this node"),
            None => Some("connection refused"),
            Some(peer) if expected.is_some_and(|expected| expected != peer) => Some("another identity"),
            _ if there == self.peer_of(dialer) => Some("that is this node"),
            _ if !self.network.can_reach(dialer, target) => Some("no answer"),
            Some(_) => None,
        };
        if let Some(reason) = reason {
            let event = Event::DialFailed { peer: expected, addresses, reason: reason.to_owned() };
            self.queue.push(now + back, Happening::Told { host: dialer, life, event: Box::new(event) });
            return;
        }
        let Some(peer) = self.living(dialer, life).map(|host| host.peer) else { return };
        let there = there.expect("an absent one has refused");
        if self.network.handshake_fails() {
            let event = Event::HandshakeRefused { peer: there, refusal: Refusal::Silent };
            self.queue.push(now + back, Happening::Told { host: dialer, life, event: Box::new(event) });
            return;
        }
        let dialed = if expected.is_none() { addresses } else { Vec::new() };
        let earlier = self.newest_link(target, peer, |end| end == dialer);
        if let Some(link) = earlier.filter(|link| self.is_whole(*link)) {
            // Dialed by an address whose owner was unknown, or while the other's dial was under way.
            self.queue.push(now + back, Happening::LinkOpened { host: dialer, life, link, dialed });
            return;
        }
        let peers = [peer, there];
        let link = self.network.connect([dialer, target], peers, now + back);
        self.queue.push(now + back, Happening::LinkOpened { host: dialer, life, link, dialed });
        self.open(target, link);
    }

    /// `dialed`: the addresses, where it was not known who is there.
    pub(super) fn on_link_opened(&mut self, index: HostIndex, life: Life, link: LinkId, dialed: Vec<Address>) {
        let peer = self.network.link(link).map(|link| link.other_peer(index));
        if let Some(host) = self.living(index, life) {
            if let Some(peer) = peer.filter(|peer| !dialed.is_empty() && host.link_to(*peer).is_some()) {
                let reason = "already connected to the peer there".to_owned();
                self.tell(index, Event::DialFailed { peer: Some(peer), addresses: dialed, reason });
            }
            self.open(index, link);
        } else {
            self.break_link(link);
            self.network.close_end(link, index);
        }
    }

    fn open(&mut self, index: HostIndex, link: LinkId) {
        let Some(known) = self.network.link(link) else {
            // Both ends have closed it since: a dial that led to nothing.
            let (addresses, reason) = (Vec::new(), "connection closed".to_owned());
            return self.tell(index, Event::DialFailed { peer: None, addresses, reason });
        };
        let (other, peer, is_broken) = (known.other_end(index), known.other_peer(index), known.broken);
        let Some(host) = self.hosts[index].as_mut() else { return };
        let is_first = host.link_to(peer).is_none();
        host.links.insert((peer, link));
        // As with the daemon's network, a node hears nothing of further connections to a peer.
        if is_first {
            self.tell(index, Event::PeerConnected { peer, addresses: vec![address_of(other)] });
            if self.network.is_direct(index, other) {
                self.tell_range(index, other, peer);
            } else {
                self.tell(index, Event::PathChanged { peer, is_direct: false });
            }
        } else {
            self.compare_lives(index, peer, link);
        }
        if is_broken {
            self.lose_soon(index, link);
        }
    }

    /// Tells a host in which range of addresses it reaches another one, where that has any.
    pub(super) fn tell_range(&mut self, index: HostIndex, other: HostIndex, peer: PeerId) {
        if let Some(range) = self.scenario.nodes[other].range {
            self.tell(index, Event::RangeFound { peer, range });
        }
    }

    /// Breaks a link; both ends find out later.
    pub(super) fn break_link(&mut self, link: LinkId) {
        if let Some(ends) = self.network.break_link(link) {
            ends.into_iter().for_each(|end| self.lose_soon(end, link));
        }
    }

    /// Draws whether this use was the link's last.
    pub(super) fn wear(&mut self, link: LinkId) {
        if self.network.link_breaks() {
            self.break_link(link);
        }
    }

    /// From now on an end of this link does not hear the other: they part, unless that is over in time.
    pub(super) fn starve(&mut self, link: LinkId) {
        let until = self.queue.now() + self.network.patience();
        self.queue.push(until, Happening::LinkStarved { link });
    }

    /// Gives up a link on which nothing was heard for long, where that is so still. One that stands still finds it dead when it
    /// goes on.
    pub(super) fn on_link_starved(&mut self, link: LinkId) {
        let now = self.queue.now();
        let Some(ends) = self.network.link(link).map(|link| link.ends()) else { return };
        self.network.set_starving(link, false);
        let stands_still = |end: HostIndex| self.paused_until[end] > now;
        if (ends.into_iter().any(stands_still) || !self.network.can_reach(ends[0], ends[1]))
            && self.network.break_link(link).is_some()
        {
            ends.into_iter().for_each(|end| self.lose_after(Duration::ZERO, end, link));
        }
    }

    pub(super) fn on_link_lost(&mut self, index: HostIndex, life: Life, link: LinkId) {
        let peer = self.network.link(link).map(|link| link.other_peer(index));
        self.network.close_end(link, index);
        self.break_off_transfers(index, life, link);
        let (Some(peer), Some(host)) = (peer, self.living(index, life)) else { return };
        if host.links.remove(&(peer, link)) && host.link_to(peer).is_none() {
            self.tell(index, Event::PeerDisconnected { peer });
        }
    }

    /// Payloads that a host has put on a link are lost.
    pub(super) fn break_off_transfers(&mut self, index: HostIndex, life: Life, link: LinkId) {
        let Some(host) = self.living(index, life) else { return };
        let unfinished = host.transfers.iter().filter(|(_, (used, _))| *used == link).map(|(transfer, _)| *transfer);
        for transfer in unfinished.collect::<Vec<TransferId>>() {
            self.on_transfer_ended(index, life, transfer, false);
        }
    }

    pub(super) fn on_message_arrived(&mut self, link: LinkId, to: HostIndex, message: Message) {
        let Some((peer, from)) = self.sender_on(link, to) else { return };
        let liar = self.hosts[from].as_mut().and_then(|host| host.liar.as_mut());
        let garbled = liar.and_then(|liar| liar.garbles());
        let event = match garbled {
            Some(misbehaviour) => Event::PeerMisbehaved { peer, misbehaviour },
            None => Event::MessageReceived { peer, message },
        };
        self.tell(to, event);
    }

    pub(super) fn on_transfer_arrived(&mut self, transfer: TransferArrived) {
        let TransferArrived { link, to, from: (from, life), transfer, header, payload, confirmed } = transfer;
        let Some((peer, _)) = self.sender_on(link, to).filter(|_| self.network.is_direct(from, to)) else { return };
        let back = self.queue.now() + self.network.latency(to, from);
        self.queue.push(back, Happening::TransferEnded { host: from, life, transfer, finished: confirmed });
        self.tell(to, Event::TransferReceived { peer, header, payload });
    }

    pub(super) fn on_transfer_ended(&mut self, index: HostIndex, life: Life, transfer: TransferId, finished: bool) {
        let Some(host) = self.living(index, life) else { return };
        if host.transfers.remove(&transfer).is_none() {
            return;
        }
        let failed = || Event::TransferFailed { transfer, reason: "broken off".to_owned() };
        self.tell(index, if finished { Event::TransferFinished { transfer } } else { failed() });
    }

    /// The host at the other end of the link that messages to a peer take.
    pub(super) fn host_behind(&self, index: HostIndex, peer: PeerId) -> Option<HostIndex> {
        let link = self.hosts[index].as_ref().and_then(|host| host.link_to(peer));
        let known = link.and_then(|link| self.network.link(link));
        known.map(|link| link.other_end(index)).or_else(|| self.host_of(peer))
    }

    /// The newest link of a host to a peer that leads to such a host.
    pub(super) fn newest_link(
        &self,
        index: HostIndex,
        peer: PeerId,
        is_meant: impl Fn(HostIndex) -> bool,
    ) -> Option<LinkId> {
        let links = self.hosts[index].as_ref()?.links_to(peer).rev();
        links.into_iter().find(|link| self.network.link(*link).is_some_and(|link| is_meant(link.other_end(index))))
    }

    /// The present identity at an address.
    pub(super) fn peer_of(&self, host: HostIndex) -> Option<PeerId> {
        self.hosts[host].as_ref().filter(|host| !host.has_stopped).map(|host| host.peer)
    }

    fn is_whole(&self, link: LinkId) -> bool {
        self.network.link(link).is_some_and(|link| !link.broken)
    }

    /// Who sent what arrives at `to` on `link`, and its host; `None` where the link is gone.
    fn sender_on(&self, link: LinkId, to: HostIndex) -> Option<(PeerId, HostIndex)> {
        let known = self.network.link(link).filter(|link| !link.broken)?;
        let peer = known.other_peer(to);
        let host = self.hosts[to].as_ref()?;
        host.links.contains(&(peer, link)).then(|| (peer, known.other_end(to)))
    }

    fn lose_soon(&mut self, index: HostIndex, link: LinkId) {
        let after = self.network.detection();
        self.lose_after(after, index, link);
    }

    fn lose_after(&mut self, after: Duration, index: HostIndex, link: LinkId) {
        let opens_at = self.network.link(link).map(|link| link.opens_at(index)).unwrap_or_default();
        let Some(life) = self.hosts[index].as_ref().map(|host| host.life) else {
            return self.network.close_end(link, index);
        };
        let noticed_at = (self.queue.now() + after).max(opens_at);
        self.queue.push(noticed_at, Happening::LinkLost { host: index, life, link });
    }
}
