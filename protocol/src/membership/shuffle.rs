//! What nodes tell each other about the swarm.
//!
//! A shuffle (Cyclon, Voulgaris et al. 2005): a node tells one random connected peer a random sample of whom it knows,
//! itself first, and is told such a sample in return. Both keep what is younger or new, at the cost of what they have
//! just given. A shuffle without a reply is a silence: so dead links are noticed even by a node that trains too slowly
//! to ask anybody for an exchange.

use super::*;
use crate::random::RngExt;

/// A shuffle under way.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) peer: PeerId,
    pub(super) deadline: Time,
    /// Whom we told it of; at most [`SHUFFLE_SAMPLE`].
    given: Vec<PeerId>,
}

impl Membership {
    /// Takes in what a connected peer tells about others, and replies where it wants that.
    ///
    /// # Errors
    /// When the list is too long or an address in it is malformed; then nothing of it is kept.
    pub(crate) fn on_shuffle(
        &mut self,
        now: Time,
        teller: PeerId,
        told: &[Descriptor],
        wants_reply: bool,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        screen(told)?;
        let mut given = Vec::new();
        if wants_reply {
            if self.may_reply(now, teller) {
                given = self.tell(now, teller, false, out);
            }
        } else if let Some(asked) = self.asked.take_if(|asked| asked.peer == teller) {
            given = asked.given;
            self.on_answer(now, teller);
        }
        self.learn(now, teller, told, given);
        Ok(())
    }

    /// A connected peer has connections enough and closes this one. Hangs up at once, so that the peer need not wait,
    /// unless something is under way with it that has crossed its message.
    ///
    /// # Errors
    /// As [`on_shuffle`](Self::on_shuffle).
    pub(crate) fn on_prune(
        &mut self,
        now: Time,
        teller: PeerId,
        told: &[Descriptor],
        is_busy: bool,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        screen(told)?;
        self.learn(now, teller, told, Vec::new());
        let connection = self.connections.get_mut(teller);
        if let Some(connection) = connection.filter(|connection| connection.state != ConnectionState::Closing) {
            if is_busy {
                // It may be busy as well, and keep the connection: then what ends that later is to be made good.
                connection.excuse(now + PARTING_MAX);
            } else {
                connection.excuse(NEVER);
                connection.state = ConnectionState::Closing;
                out.push(NetworkOrder::Disconnect { peer: teller });
                // Who has a place is asked to part after minutes.
                if now - connection.since < CONNECTION_COUNTS_AFTER {
                    let is_other = |told: &&Descriptor| ![self.me, teller].contains(&told.known.peer);
                    out.notice(Notice::TurnedAway { peer: teller, others: told.iter().filter(is_other).count() });
                }
            }
        }
        self.search_at = now;
        Ok(())
    }

    /// Asks one random connected peer to shuffle.
    pub(super) fn shuffle(&mut self, now: Time, out: &mut Outbox) {
        if self.asked.is_some() {
            return;
        }
        let peers: Vec<PeerId> =
            self.connections.iter().filter(|(_, peer)| peer.is_healthy(now)).map(|(peer, _)| peer).collect();
        if peers.is_empty() {
            return;
        }
        let peer = peers[self.random.random_range(0..peers.len())];
        let given = self.tell(now, peer, true, out);
        self.asked = Some(Asked { peer, deadline: now + SHUFFLE_TIMEOUT, given });
    }

    /// Tells a peer a sample of whom we know; returns the told ones.
    pub(super) fn tell(&mut self, now: Time, to: PeerId, wants_reply: bool, out: &mut Outbox) -> Vec<PeerId> {
        let peers = self.sample(now, to);
        let told = peers.iter().map(|descriptor| descriptor.known.peer).collect();
        out.send(to, Message::Shuffle { peers, wants_reply });
        told
    }

    /// This node, and a uniform sample of the members that are connected, or were until both sides parted, without the one
    /// that it is for. Of what is only hearsay, at most [`HEARSAY_TOLD_MAX`]; and nothing that a lookup has named.
    pub(super) fn sample(&mut self, now: Time, to: PeerId) -> Vec<Descriptor> {
        let connected = self.connections.iter().filter(|(_, connection)| connection.is_tellable(now));
        let tellable = self.view.iter().filter(|(_, known)| !known.is_suspect() && !known.is_too_old(now));
        let (met, heard): (Vec<_>, Vec<_>) = tellable.partition(|(_, known)| known.teller == known::Teller::NOBODY);
        let heard = heard.into_iter().filter(|(_, known)| known.teller != known::Teller::LOOKUP);
        let is_other = |peer: &PeerId| *peer != to;
        let met = connected.map(|(peer, _)| peer).chain(met.into_iter().map(|(peer, _)| peer));
        let met: Vec<PeerId> = met.filter(is_other).collect();
        let heard: Vec<PeerId> = heard.map(|(peer, _)| peer).filter(is_other).collect();
        let count = if self.rotations.is_young() { SHUFFLE_SAMPLE_YOUNG } else { SHUFFLE_SAMPLE };
        let mut told = self.draw(heard, HEARSAY_TOLD_MAX);
        told.extend(self.draw(met, count - told.len()));
        let describe = |peer: PeerId| {
            let connected = self.connections.get(peer).map(|connection| connection.describe(peer, now));
            connected.or_else(|| self.view.get(peer).map(|known| known.describe(peer, now)))
        };
        std::iter::once(self.describe_self()).chain(told.into_iter().filter_map(describe)).collect()
    }

    /// What this node tells of itself.
    pub(super) fn describe_self(&self) -> Descriptor {
        let known = KnownPeer { peer: self.me, addresses: self.own_addresses.clone() };
        Descriptor { known, age_seconds: 0, profile: self.profile.clone() }
    }

    /// At most so many of them, at random.
    fn draw(&mut self, mut peers: Vec<PeerId>, count_max: usize) -> Vec<PeerId> {
        let count = count_max.min(peers.len());
        (0..count).map(|_| peers.swap_remove(self.random.random_range(0..peers.len()))).collect()
    }

    /// Puts what has grown too old, or cannot be reached, into the reserve. Not while alone: then it is this node that
    /// cannot be reached.
    pub(super) fn forget_lost(&mut self, now: Time) {
        if self.connections.is_alone() {
            return;
        }
        for (peer, mut known) in self.view.take_lost(now) {
            if known.teller == known::Teller::LOOKUP {
                // Never reached: it may be anything.
                continue;
            }
            known.lost_at.get_or_insert(known.alive_at);
            self.reserve.keep(peer, known, &mut self.random);
        }
        self.reserve.expire(now);
    }

    fn learn(&mut self, now: Time, teller: PeerId, told: &[Descriptor], mut given: Vec<PeerId>) {
        for descriptor in told {
            let peer = descriptor.known.peer;
            if peer == self.me || self.is_unwanted(peer, now) {
                continue;
            }
            if let Some(connection) = self.connections.get_mut(peer) {
                // Only the peer itself knows better than its connection.
                if peer == teller {
                    connection.remember_addresses(&descriptor.known.addresses);
                    connection.on_profile(&descriptor.profile);
                }
                continue;
            }
            // What was heard of it before it was lost is no news.
            let alive_at = known::Moment::before(now, descriptor.age_seconds);
            let is_old = |lost: &Known| lost.lost_at.is_some_and(|lost_at| alive_at <= lost_at);
            if self.reserve.get(peer).is_some_and(is_old) {
                continue;
            }
            if self.view.learn(now, teller, descriptor, &mut given) {
                self.search_at = now;
            }
        }
    }

    fn may_reply(&mut self, now: Time, peer: PeerId) -> bool {
        let Some(connection) = self.connections.get_mut(peer) else { return false };
        let may = connection.replied_at.is_none_or(|last| now - last >= SHUFFLE_REPLY_PAUSE);
        if may {
            connection.replied_at = Some(now);
        }
        may
    }
}

fn screen(told: &[Descriptor]) -> Result<(), Misbehaviour> {
    let is_sane = |Descriptor { known: KnownPeer { addresses, .. }, profile, .. }: &Descriptor| {
        let has_addresses = addresses.len() <= ADDRESSES_TOLD_MAX && addresses.iter().all(Address::is_well_formed);
        has_addresses && profile.is_well_formed()
    };
    let are_sane = told.len() <= PEERS_TOLD_MAX && told.iter().all(is_sane);
    if are_sane { Ok(()) } else { Err(Misbehaviour::OutOfRange("list of peers".into())) }
}
