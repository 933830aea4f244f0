//! Whom a node knows and whom it is connected to.
//!
//! A node is connected to a few random members and holds descriptors of some more: a bounded partial view, whatever the
//! size of the swarm. Members are learned from bootstrap addresses, from those who connect, and from each other: at the
//! beginning of a connection both sides tell a sample of whom they know, and every minute a node shuffles views with one
//! random connected peer (Cyclon, Voulgaris et al. 2005; the peer sampling service, Jelasity et al. 2007). Connections
//! are renewed one by one, so that they stay a random graph whoever bootstrapped whom. No member is special.
//!
//! | part | what it decides |
//! |---|---|
//! | [`view`] | whose descriptors to keep |
//! | [`connections`] | who may be asked, who is suspected |
//! | [`dialing`] | what is being dialed; bootstrap addresses |
//! | [`reserve`] | whom to remember over a long split |
//! | [`blocklist`] | bans, and leavers that must not be learned again |
//! | [`shuffle`] | what to tell whom, and when |
//! | [`found`] | what to make of peers that the driver has looked up |
//! | [`rotation`] | pruning connections, turning newcomers away |
//! | [`search`] | whom to dial, and when |
//! | [`restraint`] | which addresses to leave alone, and how many dials in all |

mod blocklist;
mod connections;
mod dialing;
mod found;
mod known;
mod reserve;
mod restraint;
mod rotation;
mod search;
mod shuffle;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use blocklist::Blocklist;
use connections::{Connection, ConnectionState, Connections};
use dialing::{Dialing, Target};
use known::{Known, jittered};
use reserve::Reserve;
use restraint::Restraint;
use shuffle::Asked;
use view::View;

use crate::bounds::*;
use crate::config::Config;
use crate::effect::NetworkOrder;
use crate::fragments::Holding;
use crate::message::{Descriptor, KnownPeer, Message};
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::outbox::Outbox;
use crate::peer::{Address, AddressRange, PeerId};
use crate::profile::{MemberView, Profile};
use crate::random::{Generator, stream};
use crate::time::Time;

/// Something that does not happen until something else does.
const NEVER: Time = Time::MAX;

/// The sub-machine of membership.
#[derive(Debug)]
pub(crate) struct Membership {
    me: PeerId,
    own_addresses: Vec<Address>,
    /// What this node says of itself.
    profile: Profile,
    connections: Connections,
    view: View,
    reserve: Reserve,
    banned: Blocklist,
    leavers: Blocklist,
    /// Peers that take part in another run.
    foreign: Blocklist,
    dialing: Dialing,
    restraint: Restraint,
    random: Generator,
    /// Peers that are being turned away, and until when; at most [`LOBBY_MAX`].
    lobby: BTreeMap<PeerId, Time>,
    /// The shuffle whose reply is awaited.
    asked: Option<Asked>,
    shuffles: Rounds,
    rotations: Rounds,
    /// When to look for more connections.
    search_at: Time,
    /// When to dial somebody lost.
    retry_at: Time,
    /// The earliest end of a pruned connection or of a stay in the lobby; may be too early.
    prunes_end_at: Time,
    alone_since: Option<Time>,
    /// When it is said once more.
    alone_notice_at: Time,
}

/// Something regular that comes more often at first.
#[derive(Debug)]
struct Rounds {
    next: Time,
    interval: Duration,
    interval_max: Duration,
}

impl Rounds {
    fn new(now: Time, first: Duration, interval_max: Duration, random: &mut Generator) -> Rounds {
        Rounds { next: now + jittered(first, random), interval: first, interval_max }
    }

    /// Whether it is time; then the next time is set.
    fn is_due(&mut self, now: Time, random: &mut Generator) -> bool {
        let is_due = self.next <= now;
        if is_due {
            self.interval = (self.interval * 5 / 4).min(self.interval_max);
            self.next = now + jittered(self.interval, random);
        }
        is_due
    }

    /// Whether it still comes more often than it will.
    fn is_young(&self) -> bool {
        self.interval < self.interval_max
    }

    /// Begins anew.
    fn hurry(&mut self, now: Time, first: Duration, random: &mut Generator) {
        self.interval = first;
        self.next = self.next.min(now + jittered(first, random));
    }
}

impl Membership {
    pub(crate) fn new(config: &Config, me: PeerId, seed: u64, now: Time) -> Membership {
        let mut random = stream(seed, "membership", &[me.as_bytes()]);
        let mut membership = Membership {
            me,
            own_addresses: Vec::new(),
            profile: Profile { name: config.name.clone(), holding: config.holding, ..Profile::default() },
            connections: Connections::default(),
            view: View::default(),
            reserve: Reserve::default(),
            banned: Blocklist::new(BANS_MAX),
            leavers: Blocklist::new(LEAVERS_MAX),
            foreign: Blocklist::new(FOREIGN_MAX),
            dialing: Dialing::new(&config.bootstrap),
            restraint: Restraint::default(),
            lobby: BTreeMap::new(),
            asked: None,
            shuffles: Rounds::new(now, SHUFFLE_PERIOD_FIRST, SHUFFLE_PERIOD, &mut random),
            rotations: Rounds::new(now, ROTATION_PERIOD_FIRST, ROTATION_PERIOD, &mut random),
            search_at: now,
            retry_at: now + jittered(BOOTSTRAP_PERIOD, &mut random),
            prunes_end_at: NEVER,
            alone_since: (!config.bootstrap.is_empty()).then_some(now),
            alone_notice_at: now + ALONE_NOTICE_PERIOD,
            random,
        };
        // Nobody else is told of them before they have answered.
        for known in config.remembered.iter().filter(|known| known.peer != me && !known.addresses.is_empty()) {
            membership.reserve.keep(known.peer, Known::remembered(now, known), &mut membership.random);
        }
        membership
    }

    /// When to call [`on_deadline`](Self::on_deadline) at the latest.
    pub(crate) fn next_deadline(&self) -> Time {
        let alone_notice_at = self.alone_since.map_or(NEVER, |_| self.alone_notice_at);
        let reply_due_at = self.asked.as_ref().map_or(NEVER, |asked| asked.deadline);
        let dial_ends_at = self.dialing.next_deadline().unwrap_or(NEVER);
        let rounds = self.shuffles.next.min(self.rotations.next);
        let dials = self.search_at.min(self.retry_at).min(dial_ends_at);
        rounds.min(dials).min(reply_due_at).min(self.prunes_end_at).min(alone_notice_at)
    }

    /// Members connected now, but for those that are being disconnected.
    pub(crate) fn connected(&self) -> impl Iterator<Item = PeerId> + '_ {
        let is_here = |connection: &Connection| connection.state != ConnectionState::Closing;
        self.connections.iter().filter(move |(_, connection)| is_here(connection)).map(|(peer, _)| peer)
    }

    /// Those of them to whom more than messages gets through, and that have not taken leave.
    pub(crate) fn directly_connected(&self) -> impl Iterator<Item = PeerId> + '_ {
        let is_there = |connection: &Connection| connection.is_direct && !connection.has_left();
        self.connected().filter(move |peer| self.connections.get(*peer).is_some_and(is_there))
    }

    pub(crate) fn is_connected(&self, peer: PeerId) -> bool {
        self.connections.get(peer).is_some_and(|connection| connection.state != ConnectionState::Closing)
    }

    /// Connected members that may be asked for an exchange now: neither silent nor about to go.
    pub(crate) fn partners(&self, now: Time) -> Vec<PeerId> {
        self.connections.partners(now)
    }

    /// When the next connected member may be asked that may not be now; `None` where there is none.
    pub(crate) fn next_partner_at(&self, now: Time) -> Option<Time> {
        self.connections.next_partner_at(now)
    }

    /// Which fragments a connected member holds: all, as long as it has not said so.
    pub(crate) fn holding(&self, peer: PeerId) -> Holding {
        self.connections.get(peer).map(|connection| connection.profile.holding).unwrap_or_default()
    }

    /// A connected peer asked not to be asked before `until`.
    pub(crate) fn avoid(&mut self, peer: PeerId, until: Time) {
        self.connections.avoid(peer, until);
    }

    /// Remembers a declared speed, which must be finite and not negative; returns it and our own, both within
    /// [`WEIGHT_CLAMP`] of the median of the connected members, so that no share is more lopsided than that bound allows.
    pub(crate) fn clamp_weights(&mut self, peer: PeerId, declared: f32, own: f32) -> (f32, f32) {
        let median = self.connections.median_weight(peer, declared, own);
        let clamp = |weight: f32| weight.clamp(median / WEIGHT_CLAMP, median * WEIGHT_CLAMP);
        (clamp(declared), clamp(own))
    }

    /// Members with addresses, to be shown or remembered: first those that are connected, and so alive.
    pub(crate) fn known(&self) -> Vec<KnownPeer> {
        let described = |(peer, addresses): (PeerId, &[Address])| KnownPeer { peer, addresses: addresses.to_vec() };
        self.with_addresses().map(described).collect()
    }

    /// How many those are.
    pub(crate) fn known_count(&self) -> usize {
        self.with_addresses().count()
    }

    fn with_addresses(&self) -> impl Iterator<Item = (PeerId, &[Address])> {
        let connected = self.connections.iter().filter(|(_, connection)| !connection.has_left());
        let connected = connected.map(|(peer, connection)| (peer, connection.addresses()));
        let others = self.view.members().map(|(peer, known)| (peer, &*known.addresses));
        connected.chain(others).filter(|(_, addresses)| !addresses.is_empty())
    }

    /// What is known of members that are connected or in the view; at most [`VIEW_MAX`].
    pub(crate) fn members(&self, now: Time) -> BTreeMap<PeerId, MemberView> {
        let is_here = |connection: &Connection| connection.state != ConnectionState::Closing && !connection.has_left();
        let connected = self.connections.iter().filter(|(_, connection)| is_here(connection));
        let connected = connected.map(|(peer, connection)| (peer, connection.shown(now)));
        let viewed = self.view.members().filter(|(_, known)| !known.is_too_old(now));
        let viewed = viewed.map(|(peer, known)| (peer, known.shown(now)));
        viewed.chain(connected).collect()
    }

    /// How many [`members`](Self::members) there are.
    pub(crate) fn member_count(&self, now: Time) -> usize {
        self.profiles(now).count()
    }

    /// As how many they count for this node, which averages with each only what both hold. `fragments`: of the model.
    pub(crate) fn sharing_members(&self, now: Time, fragments: u16) -> f64 {
        let own = self.profile.holding;
        self.profiles(now).map(|profile| own.shared_with(profile.holding, fragments)).sum()
    }

    fn profiles(&self, now: Time) -> impl Iterator<Item = &Profile> {
        let here = |peer| {
            let connection = self.connections.get(peer);
            connection.filter(|it| it.state != ConnectionState::Closing && !it.has_left())
        };
        let connected = self.connections.iter().filter_map(move |(peer, _)| Some(&here(peer)?.profile));
        let viewed = self.view.members().filter(move |(_, known)| !known.is_too_old(now));
        let viewed = viewed.filter(move |(peer, _)| here(*peer).is_none());
        connected.chain(viewed.map(|(_, known)| &known.profile))
    }

    /// This node trains at this speed now, in tokens a second: finite, at least 0.
    pub(crate) fn on_speed(&mut self, tokens_per_second: f64) {
        self.profile.set_speed(tokens_per_second as f32);
    }

    pub(crate) fn own_holding(&self) -> Holding {
        self.profile.holding
    }

    /// This node holds these fragments now. Who is connected hears it at once, also one that has been silent: towards the end of a
    /// run the next shuffle is too late.
    pub(crate) fn on_holding(&mut self, holding: Holding, out: &mut Outbox) {
        self.profile.holding = holding;
        let is_here = |connection: &Connection| connection.state != ConnectionState::Closing && !connection.has_left();
        for (peer, _) in self.connections.iter().filter(|(_, connection)| is_here(connection)) {
            out.send(peer, Message::Shuffle { peers: vec![self.describe_self()], wants_reply: false });
        }
    }

    pub(crate) fn on_address_found(&mut self, address: Address) {
        if !self.own_addresses.contains(&address) {
            self.own_addresses.insert(0, address);
            self.own_addresses.truncate(ADDRESSES_TOLD_MAX);
        }
    }

    pub(crate) fn on_address_lost(&mut self, address: &Address) {
        self.own_addresses.retain(|own| own != address);
    }

    /// The way to a connected peer has become direct, or is through a relay only: then it is no partner for exchanges.
    pub(crate) fn on_path_changed(&mut self, now: Time, peer: PeerId, is_direct: bool) {
        self.connections.on_path_changed(peer, is_direct);
        self.search_at = now;
    }

    /// A connected peer is reached in this range of addresses.
    pub(crate) fn on_range_found(&mut self, peer: PeerId, range: AddressRange) {
        if let Some(connection) = self.connections.get_mut(peer) {
            connection.range = Some(range);
        }
    }

    /// The range of addresses in which a connected peer is reached, where that is known.
    pub(crate) fn range(&self, peer: PeerId) -> Option<AddressRange> {
        self.connections.get(peer)?.range
    }

    /// Returns whether the peer is now a connected member.
    pub(crate) fn on_connected(&mut self, now: Time, peer: PeerId, addresses: Vec<Address>, out: &mut Outbox) -> bool {
        self.restraint.reached(self.dialing.addresses_for(Target::Member(peer)));
        self.dialing.on_connected(now, peer, &addresses, &mut self.random);
        if self.is_banned(peer, now) {
            out.push(NetworkOrder::Disconnect { peer });
            return false;
        }
        self.leavers.remove(peer);
        self.foreign.remove(peer);
        if let Some(connection) = self.connections.get_mut(peer) {
            // A second connection, or one that it wants again.
            connection.keep(now);
            connection.remember_addresses(&addresses);
            return true;
        }
        if self.connections.is_full() {
            self.turn_away(now, peer, out);
            return false;
        }
        let (lost, viewed) = (self.reserve.remove(peer), self.view.remove(peer));
        let connection = Connection::new(now, viewed.or(lost).as_ref(), &addresses);
        self.connections.insert(peer, connection);
        self.lobby.remove(&peer);
        if self.alone_since.take().is_some_and(|since| now - since >= AWAY_COUNTS_AFTER) {
            // Back in a swarm that has gone on without us.
            self.shuffles.hurry(now, SHUFFLE_PERIOD_FIRST, &mut self.random);
            self.rotations.hurry(now, ROTATION_PERIOD_FIRST, &mut self.random);
        }
        self.search_at = now;
        out.notice(Notice::PeerJoined(peer));
        self.tell(now, peer, false, out);
        true
    }

    /// Returns whether the peer was a connected member.
    pub(crate) fn on_disconnected(&mut self, now: Time, peer: PeerId, out: &mut Outbox) -> bool {
        self.lobby.remove(&peer);
        let Some(connection) = self.connections.remove(peer) else { return false };
        let announced = connection.has_left();
        let lasted = now - connection.since >= CONNECTION_COUNTS_AFTER;
        self.dialing.on_disconnected(now, peer, (lasted, connection.is_pruned(now)), &mut self.random);
        if announced {
            self.leavers.insert(now, peer, now + LEAVERS_KEPT);
        } else if !self.is_banned(peer, now) && !connection.addresses().is_empty() {
            let known = connection.into_known(now, &mut self.random);
            self.view.keep(peer, known);
        }
        self.asked.take_if(|asked| asked.peer == peer);
        out.notice(Notice::PeerLeft { peer, announced });
        if self.connections.is_alone() && self.alone_since.is_none() {
            self.alone_since = Some(now);
            self.alone_notice_at = now + ALONE_NOTICE_PERIOD;
        }
        self.search_at = now;
        self.retry_at = self.retry_at.min(now + BOOTSTRAP_PERIOD);
        true
    }

    /// A connected peer says that it leaves the swarm.
    pub(crate) fn on_leave(&mut self, now: Time, peer: PeerId) {
        if let Some(connection) = self.connections.get_mut(peer) {
            connection.leave(now);
        }
    }

    /// A dial has failed, or a handshake was refused.
    pub(crate) fn on_dial_failed(&mut self, now: Time, peer: Option<PeerId>, tried: &[Address], reason: String) {
        let is_connected = peer.filter(|peer| self.is_connected(*peer));
        if is_connected.is_none() {
            self.dial_in_vain(now, tried);
        }
        self.dialing.on_failed(now, tried, is_connected, &mut self.random);
        if let Some(peer) = peer {
            self.member_not_reached(now, peer);
        }
        self.dialing.last_failure = Some(reason);
        self.search_at = now;
    }

    /// A message of a connected peer. Returns whether it had taken leave, and is back.
    pub(crate) fn on_heard(&mut self, now: Time, peer: PeerId) -> bool {
        self.connections.on_heard(now, peer)
    }

    /// A connected peer has answered something that this node said, in time or late: it hears us, and is no suspect any
    /// more. Implies [`on_heard`](Self::on_heard).
    pub(crate) fn on_answer(&mut self, now: Time, peer: PeerId) -> bool {
        self.connections.on_answer(now, peer)
    }

    /// A connected peer did not answer in time, be it a shuffle or a proposal. It is not asked again for a while that doubles with each silence, others
    /// are not told of it, and after [`SILENCES_MAX`] silences in a row it is disconnected.
    pub(crate) fn on_silence(&mut self, now: Time, peer: PeerId, out: &mut Outbox) {
        let Some(connection) = self.connections.get_mut(peer) else { return };
        if connection.on_silence(now, &mut self.random) && connection.state != ConnectionState::Closing {
            connection.state = ConnectionState::Closing;
            out.push(NetworkOrder::Disconnect { peer });
        }
        self.search_at = now;
    }

    /// How long a connected peer had been out of reach before it came back, where that was `long` or longer: its part of
    /// the swarm, or this one, was cut off. Says so once per return.
    pub(crate) fn take_return(&mut self, peer: PeerId, long: Duration) -> Option<Duration> {
        self.connections.get_mut(peer)?.returned_after.take().filter(|away| *away >= long)
    }

    /// Wants nothing of a peer until then: disconnects and forgets it, and turns it away when it comes.
    pub(crate) fn ban(&mut self, now: Time, peer: PeerId, until: Time, out: &mut Outbox) {
        self.banned.insert(now, peer, until);
        self.view.remove(peer);
        self.reserve.remove(peer);
        self.dialing.end(Target::Member(peer));
        let in_lobby = self.lobby.remove(&peer).is_some();
        let connection = self.connections.get_mut(peer);
        if let Some(connection) = connection.filter(|connection| connection.state != ConnectionState::Closing) {
            connection.state = ConnectionState::Closing;
            out.push(NetworkOrder::Disconnect { peer });
        } else if in_lobby {
            out.push(NetworkOrder::Disconnect { peer });
        }
        self.search_at = now;
    }

    pub(crate) fn is_banned(&self, peer: PeerId, now: Time) -> bool {
        self.banned.contains(peer, now)
    }

    /// Not to be learned of, whoever tells.
    fn is_unwanted(&self, peer: PeerId, now: Time) -> bool {
        [&self.banned, &self.leavers, &self.foreign].iter().any(|blocked| blocked.contains(peer, now))
    }

    /// Peers banned at `now`, each with the end of its ban.
    pub(crate) fn banned(&self, now: Time) -> BTreeMap<PeerId, Time> {
        self.banned.present(now).collect()
    }

    /// Does what is due. `is_busy` tells with whom something is under way that a closed connection would break off.
    pub(crate) fn on_deadline(&mut self, now: Time, is_busy: impl Fn(PeerId) -> bool, out: &mut Outbox) {
        if now < self.next_deadline() {
            return;
        }
        for expired in self.dialing.take_expired(now) {
            match expired.target {
                Target::Member(peer) => {
                    self.dial_in_vain(now, &expired.addresses);
                    self.member_not_reached(now, peer);
                }
                Target::Bootstrap(index) => self.dialing.bootstrap_failed(now, index, &mut self.random),
            }
            self.search_at = now;
        }
        if self.prunes_end_at <= now {
            self.end_partings(now, &is_busy, out);
        }
        if let Some(asked) = self.asked.take_if(|asked| asked.deadline <= now) {
            self.on_silence(now, asked.peer, out);
        }
        if self.shuffles.is_due(now, &mut self.random) {
            self.forget_lost(now);
            self.shuffle(now, out);
        }
        if self.rotations.is_due(now, &mut self.random) {
            self.rotate(now, &is_busy, out);
        }
        if self.retry_at <= now {
            self.dial_lost(now, out);
        }
        if self.search_at <= now {
            self.search(now, out);
        }
        self.say_when_alone(now, out);
    }

    fn say_when_alone(&mut self, now: Time, out: &mut Outbox) {
        if self.alone_since.is_some() && self.alone_notice_at <= now {
            self.alone_notice_at = now + ALONE_NOTICE_PERIOD;
            out.notice(Notice::Alone { reason: self.dialing.last_failure.clone() });
        }
    }
}
