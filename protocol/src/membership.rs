//! Whom a node knows and whom it is connected to.
//!
//! Members are learned from bootstrap addresses, from those who connect, and from each other: a newcomer is introduced
//! to a few peers at once, and now and then everybody tells one random peer whom it knows. No member is special.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::*;
use crate::config::{Bootstrap, Config};
use crate::effect::{Effect, Notice};
use crate::event::Misbehaviour;
use crate::message::{ADDRESSES_TOLD_MAX, KnownPeer, Message, PEERS_TOLD_MAX};
use crate::outbox::Outbox;
use crate::peer::{Address, PeerId};
use crate::random::{Generator, RngExt, stream};
use crate::time::Time;

/// One member.
#[derive(Debug, Default)]
struct Member {
    /// Newest first, at most [`ADDRESSES_TOLD_MAX`].
    addresses: Vec<Address>,
    connected: bool,
    connected_at: Time,
    /// It said that it leaves.
    left: bool,
    /// Declared tokens a second, once heard.
    weight: Option<f32>,
    /// Not to be asked for an exchange before then.
    avoid_until: Time,
    dial: Dial,
}

/// Where dialling stands.
#[derive(Clone, Copy, Debug, Default)]
struct Dial {
    under_way_since: Option<Time>,
    failures: u32,
    not_before: Time,
}

impl Dial {
    fn may_start(&self, now: Time) -> bool {
        self.under_way_since.is_none() && self.not_before <= now
    }

    fn failed(&mut self, now: Time, random: &mut Generator) {
        self.under_way_since = None;
        self.failures = self.failures.saturating_add(1);
        let doubled = DIAL_BACK_OFF.saturating_mul(1 << (self.failures - 1).min(10)).min(DIAL_BACK_OFF_MAX);
        self.not_before = now + doubled.mul_f64(random.random_range(0.8..1.2));
    }
}

/// A bootstrap address and what became of it.
#[derive(Debug)]
struct Entry {
    configured: Bootstrap,
    /// Who was there last. Not whom to expect: a machine set up anew has another identity.
    seen: Option<PeerId>,
    dial: Dial,
}

impl Entry {
    fn new(configured: Bootstrap) -> Entry {
        Entry { configured, seen: None, dial: Dial::default() }
    }
}

/// The sub-machine of membership.
#[derive(Debug)]
pub(crate) struct Membership {
    me: PeerId,
    own_addresses: Vec<Address>,
    members: BTreeMap<PeerId, Member>,
    bootstrap: Vec<Entry>,
    random: Generator,
    next_round: Time,
    next_peer_exchange: Time,
    next_bootstrap_round: Time,
    alone_since: Option<Time>,
    last_dial_failure: Option<String>,
}

impl Membership {
    pub(crate) fn new(config: &Config, me: PeerId, seed: u64, now: Time) -> Membership {
        let mut membership = Membership {
            me,
            own_addresses: Vec::new(),
            members: BTreeMap::new(),
            bootstrap: config.bootstrap.iter().cloned().map(Entry::new).collect(),
            random: stream(seed, "membership", &[me.as_bytes()]),
            next_round: now,
            next_peer_exchange: now + PEER_EXCHANGE_PERIOD,
            next_bootstrap_round: now,
            alone_since: (!config.bootstrap.is_empty()).then_some(now),
            last_dial_failure: None,
        };
        for known in &config.remembered {
            membership.learn(known);
        }
        membership
    }

    pub(crate) fn next_deadline(&self) -> Time {
        self.next_round.min(self.next_peer_exchange)
    }

    pub(crate) fn connected(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.members.iter().filter(|(_, member)| member.connected).map(|(peer, _)| *peer)
    }

    pub(crate) fn is_connected(&self, peer: PeerId) -> bool {
        self.members.get(&peer).is_some_and(|member| member.connected)
    }

    /// Connected members that may be asked for an exchange now.
    pub(crate) fn partners(&self, now: Time) -> Vec<PeerId> {
        let may_be_asked = |member: &Member| member.connected && !member.left && member.avoid_until <= now;
        self.members.iter().filter(|(_, member)| may_be_asked(member)).map(|(peer, _)| *peer).collect()
    }

    pub(crate) fn avoid(&mut self, peer: PeerId, until: Time) {
        if let Some(member) = self.members.get_mut(&peer) {
            member.avoid_until = until;
        }
    }

    /// Remembers a declared speed, which must be finite and not negative; returns it and our own, both within
    /// [`WEIGHT_CLAMP`] of the median seen, so that no share is more lopsided than that bound allows.
    pub(crate) fn clamp_weights(&mut self, peer: PeerId, declared: f32, own: f32) -> (f32, f32) {
        if let Some(member) = self.members.get_mut(&peer) {
            member.weight = Some(declared);
        }
        let mut seen: Vec<f32> = self.members.values().filter_map(|member| member.weight).collect();
        seen.push(own);
        seen.sort_by(f32::total_cmp);
        let median = seen[seen.len() / 2];
        let clamp = |weight: f32| weight.clamp(median / WEIGHT_CLAMP, median * WEIGHT_CLAMP);
        (clamp(declared), clamp(own))
    }

    /// Members with addresses, to be told or remembered: first those that are connected, and so alive.
    pub(crate) fn known(&self) -> Vec<KnownPeer> {
        let known = |(peer, member): (&PeerId, &Member)| KnownPeer { peer: *peer, addresses: member.addresses.clone() };
        let of = |connected: bool| {
            let wanted =
                move |member: &Member| member.connected == connected && !member.addresses.is_empty() && !member.left;
            self.members.iter().filter(move |(_, member)| wanted(member)).map(known)
        };
        of(true).chain(of(false)).collect()
    }

    pub(crate) fn on_address_found(&mut self, address: Address) {
        if !self.own_addresses.contains(&address) {
            self.own_addresses.insert(0, address);
            self.own_addresses.truncate(ADDRESSES_TOLD_MAX);
        }
    }

    /// Returns whether the peer is now a connected member.
    pub(crate) fn on_connected(&mut self, now: Time, peer: PeerId, addresses: Vec<Address>, out: &mut Outbox) -> bool {
        if !self.is_connected(peer) && self.connected().count() >= CONNECTIONS_MAX {
            // Somebody else has room for it.
            self.tell_peers(peer, out);
            out.push(Effect::Disconnect { peer });
            return false;
        }
        self.make_room_for(peer);
        let member = self.members.entry(peer).or_default();
        let is_new = !member.connected;
        member.connected = true;
        member.left = false;
        member.dial.under_way_since = None;
        if is_new {
            member.connected_at = now;
        }
        remember_addresses(&mut member.addresses, &addresses);
        for entry in &mut self.bootstrap {
            if entry.configured.peer == Some(peer) || member.addresses.contains(&entry.configured.address) {
                entry.seen = Some(peer);
                entry.dial = Dial::default();
            }
        }
        self.alone_since = None;
        if is_new {
            out.notice(Notice::PeerJoined(peer));
            self.introduce(peer, out);
        }
        true
    }

    /// Returns whether the peer was a connected member.
    pub(crate) fn on_disconnected(&mut self, now: Time, peer: PeerId, out: &mut Outbox) -> bool {
        let Some(member) = self.members.get_mut(&peer).filter(|member| member.connected) else {
            return false;
        };
        member.connected = false;
        let announced = member.left;
        if announced {
            self.members.remove(&peer);
        } else {
            // A peer that hangs up at once is like one that cannot be dialled; any other is redialled soon.
            if now - member.connected_at >= CONNECTION_COUNTS_AFTER {
                member.dial = Dial::default();
            }
            member.dial.failed(now, &mut self.random);
        }
        out.notice(Notice::PeerLeft { peer, announced });
        if self.connected().next().is_none() {
            self.alone_since = Some(now);
        }
        true
    }

    pub(crate) fn on_leave(&mut self, peer: PeerId) {
        if let Some(member) = self.members.get_mut(&peer) {
            member.left = true;
        }
    }

    pub(crate) fn on_dial_failed(&mut self, now: Time, peer: Option<PeerId>, tried: &[Address], reason: String) {
        let is_connected = peer.filter(|peer| self.is_connected(*peer));
        let random = &mut self.random;
        for entry in &mut self.bootstrap {
            if entry.dial.under_way_since.is_some() && tried.contains(&entry.configured.address) {
                entry.dial.failed(now, random);
                // Where it led to somebody who is connected already, it is now known who is there.
                entry.seen = is_connected.or(entry.seen);
            }
        }
        if let Some(peer) = peer
            && let Some(member) = self.members.get_mut(&peer)
            && !member.connected
        {
            member.dial.failed(now, random);
            if member.dial.failures >= DIAL_FAILURES_MAX {
                self.members.remove(&peer);
            }
        }
        self.last_dial_failure = Some(reason);
    }

    pub(crate) fn on_silence(&mut self, _now: Time, _peer: PeerId, _out: &mut Outbox) {}

    pub(crate) fn ban(&mut self, _now: Time, _peer: PeerId, _until: Time, _out: &mut Outbox) {}

    pub(crate) fn banned(&self) -> BTreeMap<PeerId, Time> {
        BTreeMap::new()
    }

    /// Keeps what a peer tells about others.
    pub(crate) fn on_peers_told(&mut self, told: &[KnownPeer]) -> Result<(), Misbehaviour> {
        let sane = |known: &KnownPeer| {
            known.addresses.len() <= ADDRESSES_TOLD_MAX && known.addresses.iter().all(Address::is_well_formed)
        };
        if told.len() > PEERS_TOLD_MAX || !told.iter().all(sane) {
            return Err(Misbehaviour::OutOfRange("list of peers"));
        }
        for known in told {
            self.learn(known);
        }
        Ok(())
    }

    pub(crate) fn on_deadline(&mut self, now: Time, out: &mut Outbox) {
        if self.next_round <= now {
            self.next_round = now + MEMBERSHIP_PERIOD;
            self.expire_dials(now);
            self.dial_somebody(now, out);
            self.say_when_alone(now, out);
        }
        if self.next_peer_exchange <= now {
            self.next_peer_exchange = now + self.jittered(PEER_EXCHANGE_PERIOD);
            let connected: Vec<PeerId> = self.connected().collect();
            if let Some(peer) = self.pick(&connected) {
                self.tell_peers(peer, out);
            }
        }
    }

    fn learn(&mut self, known: &KnownPeer) {
        if known.peer == self.me || known.addresses.is_empty() {
            return;
        }
        self.make_room_for(known.peer);
        let member = self.members.entry(known.peer).or_default();
        // Hearsay does not displace what the peer itself said.
        if member.addresses.is_empty() {
            remember_addresses(&mut member.addresses, &known.addresses);
        }
    }

    /// Forgets the unconnected member with the most failed dials when the view is full and `newcomer` not in it.
    fn make_room_for(&mut self, newcomer: PeerId) {
        if self.members.len() >= VIEW_MAX && !self.members.contains_key(&newcomer) {
            let unconnected = self.members.iter().filter(|(_, member)| !member.connected);
            let worst = unconnected.max_by_key(|(_, member)| member.dial.failures).map(|(peer, _)| *peer);
            worst.map(|peer| self.members.remove(&peer));
        }
    }

    /// Tells a newcomer whom we know, and a few others about the newcomer.
    fn introduce(&mut self, newcomer: PeerId, out: &mut Outbox) {
        self.tell_peers(newcomer, out);
        let addresses = self.members.get(&newcomer).map(|member| member.addresses.clone()).unwrap_or_default();
        if addresses.is_empty() {
            return;
        }
        let mut others: Vec<PeerId> = self.connected().filter(|peer| *peer != newcomer).collect();
        for _ in 0..INTRODUCTIONS.min(others.len()) {
            let other = others.swap_remove(self.random.random_range(0..others.len()));
            let known = KnownPeer { peer: newcomer, addresses: addresses.clone() };
            out.send(other, Message::Peers(vec![known]));
        }
    }

    /// A random sample of the view, never of the one it is for.
    fn tell_peers(&mut self, to: PeerId, out: &mut Outbox) {
        let is_news = |known: &KnownPeer| {
            let failures = self.members.get(&known.peer).map_or(0, |member| member.dial.failures);
            known.peer != to && failures < DIAL_FAILURES_TOLD_MAX
        };
        let mut known: Vec<KnownPeer> = self.known().into_iter().filter(is_news).collect();
        // Half of the room for those that are surely alive, half for a sample of all.
        while known.len() > PEERS_TOLD_MAX {
            known.remove(self.random.random_range(PEERS_TOLD_MAX / 2..known.len()));
        }
        if !known.is_empty() {
            out.send(to, Message::Peers(known));
        }
    }

    fn expire_dials(&mut self, now: Time) {
        let random = &mut self.random;
        let dials = self.members.values_mut().map(|member| &mut member.dial);
        for dial in dials.chain(self.bootstrap.iter_mut().map(|entry| &mut entry.dial)) {
            if dial.under_way_since.is_some_and(|since| now - since >= DIAL_TIMEOUT) {
                dial.failed(now, random);
            }
        }
    }

    /// Dials random members while too few are connected. Bootstrap addresses are dialled at once while nobody is
    /// connected, and now and then while few are: after a split the other half may be behind them.
    fn dial_somebody(&mut self, now: Time, out: &mut Outbox) {
        let connected = self.connected().count();
        let mut under_way = self.members.values().filter(|member| member.dial.under_way_since.is_some()).count();
        let alone = connected == 0;
        if alone || (connected < CONNECTIONS_WANTED && self.next_bootstrap_round <= now) {
            self.next_bootstrap_round = now + BOOTSTRAP_PERIOD;
            let is_connected = |peer: Option<PeerId>| {
                peer.and_then(|peer| self.members.get(&peer)).is_some_and(|member| member.connected)
            };
            for entry in &mut self.bootstrap {
                let Bootstrap { peer, address } = &entry.configured;
                let is_me = *peer == Some(self.me) || self.own_addresses.contains(address);
                let wanted = !is_me && !is_connected(*peer) && !is_connected(entry.seen);
                if wanted && entry.dial.may_start(now) && under_way < DIALS_MAX {
                    under_way += 1;
                    entry.dial.under_way_since = Some(now);
                    out.push(Effect::Dial { peer: *peer, addresses: vec![address.clone()] });
                }
            }
        }
        let may_dial =
            |member: &Member| !member.connected && !member.addresses.is_empty() && member.dial.may_start(now);
        let mut candidates: Vec<PeerId> =
            self.members.iter().filter(|(_, member)| may_dial(member)).map(|(peer, _)| *peer).collect();
        while connected + under_way < CONNECTIONS_WANTED && under_way < DIALS_MAX && !candidates.is_empty() {
            let peer = candidates.swap_remove(self.random.random_range(0..candidates.len()));
            let member = self.members.get_mut(&peer).expect("candidates are members");
            member.dial.under_way_since = Some(now);
            under_way += 1;
            out.push(Effect::Dial { peer: Some(peer), addresses: member.addresses.clone() });
        }
    }

    fn say_when_alone(&mut self, now: Time, out: &mut Outbox) {
        if self.alone_since.is_some_and(|since| now - since >= ALONE_NOTICE_PERIOD) {
            self.alone_since = Some(now);
            out.notice(Notice::Alone { reason: self.last_dial_failure.clone() });
        }
    }

    fn pick(&mut self, peers: &[PeerId]) -> Option<PeerId> {
        (!peers.is_empty()).then(|| peers[self.random.random_range(0..peers.len())])
    }

    fn jittered(&mut self, period: Duration) -> Duration {
        period.mul_f64(self.random.random_range(0.8..1.2))
    }
}

/// Puts new addresses first and keeps the list short.
fn remember_addresses(addresses: &mut Vec<Address>, told: &[Address]) {
    for address in told.iter().rev() {
        addresses.retain(|known| known != address);
        addresses.insert(0, address.clone());
    }
    addresses.truncate(ADDRESSES_TOLD_MAX);
}
