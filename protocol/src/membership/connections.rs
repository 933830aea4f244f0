//! The members to which a node is connected, and what it makes of their silence.
//!
//! Nobody sends heartbeats to everybody: a peer is suspected when it leaves a question unanswered, be it a proposal or a
//! shuffle, and is asked again after a wait that doubles. Only an answer clears it, because a message of its own does
//! not prove that it hears us: with a link that is dead in one direction a peer talks on and never replies. (The idea of
//! suspicion before failure is that of SWIM, Das et al. 2002.)

use std::collections::BTreeMap;
use std::time::Duration;

use super::known::{Dial, Known, Moment, Teller, jittered, remember_addresses};
use crate::bounds::*;
use crate::message::{Descriptor, KnownPeer};
use crate::peer::{Address, AddressRange, PeerId};
use crate::profile::{MemberView, Profile};
use crate::random::Generator;
use crate::time::Time;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Open,
    /// We have told it that we part, and wait until then for it to hang up.
    Pruned(Time),
    /// The driver has been told to close it.
    Closing,
}

/// One connected member.
#[derive(Debug)]
pub(super) struct Connection {
    addresses: Box<[Address]>,
    pub(super) since: Time,
    heard_at: Time,
    pub(super) state: ConnectionState,
    /// When it said that it leaves the swarm, where it did.
    left_at: Option<Time>,
    /// One of both sides has had enough connections: nobody is to blame for its end before then.
    excused_until: Time,
    /// Whether transfers reach it; through a relay only messages do.
    pub(super) is_direct: bool,
    /// In which it is reached, once that is known.
    pub(super) range: Option<AddressRange>,
    /// Declared tokens a second, once heard.
    weight: Option<f32>,
    /// Not to be asked for an exchange before then: it said so.
    avoid_until: Time,
    /// Questions in a row without an answer.
    silences: u8,
    /// When the first of them was given up, until something is heard again.
    silent_since: Option<Time>,
    /// Not to be asked for anything before then: it did not answer.
    suspect_until: Time,
    /// Dials that had failed before it connected.
    failures: u8,
    /// How long it had been out of reach, until somebody asks.
    pub(super) returned_after: Option<Duration>,
    /// When it was last sent a reply to a shuffle.
    pub(super) replied_at: Option<Time>,
    /// What it said of itself; before it did, what others passed on.
    pub(super) profile: Profile,
    /// It trained, and then said that it does so no more.
    has_stopped_training: bool,
}

impl Connection {
    /// A new one, to a member that was `known` before or not. Where it says that it listens stands, whatever others said.
    pub(super) fn new(now: Time, known: Option<&Known>, addresses: &[Address]) -> Connection {
        // It must answer once before its old silences are forgiven.
        let silences = known.map_or(0, |known| known.silences.min(SILENCES_MAX - 1));
        let mut connection = Connection {
            addresses: known.filter(|_| addresses.is_empty()).map(|known| known.addresses.clone()).unwrap_or_default(),
            since: now,
            heard_at: now,
            state: ConnectionState::Open,
            left_at: None,
            excused_until: now,
            is_direct: true,
            range: None,
            weight: None,
            avoid_until: now,
            silences,
            silent_since: None,
            suspect_until: now,
            failures: known.map_or(0, |known| known.dial.failures),
            returned_after: known.and_then(|known| known.away(now)),
            replied_at: None,
            profile: known.map(|known| known.profile.clone()).unwrap_or_default(),
            has_stopped_training: false,
        };
        remember_addresses(&mut connection.addresses, addresses);
        connection
    }

    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    pub(super) fn remember_addresses(&mut self, addresses: &[Address]) {
        remember_addresses(&mut self.addresses, addresses);
    }

    /// It has described itself.
    pub(super) fn on_profile(&mut self, told: &Profile) {
        let trains = told.tokens_per_second > 0.0;
        self.has_stopped_training = !trains && (self.has_stopped_training || self.profile.tokens_per_second > 0.0);
        self.profile.clone_from(told);
    }

    /// It has declared a speed for an exchange: younger than what it said of itself, but said after training's end as well.
    fn on_weight(&mut self, weight: f32) {
        self.weight = Some(weight);
        if !self.has_stopped_training {
            self.profile.set_speed(weight);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == ConnectionState::Open
    }

    /// It says that it leaves the swarm.
    pub(super) fn leave(&mut self, now: Time) {
        self.left_at = Some(now);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left_at.is_some()
    }

    /// Open, answers and stays.
    pub(super) fn is_healthy(&self, now: Time) -> bool {
        self.is_open() && !self.has_left() && self.suspect_until <= now
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.silences > 0
    }

    /// May be told to others.
    pub(super) fn is_tellable(&self, now: Time) -> bool {
        let is_here = self.state != ConnectionState::Closing && !self.has_left() && !self.is_suspect();
        is_here && !self.addresses.is_empty() && now - self.heard_at <= AGE_MAX
    }

    /// Its end before `until`, at the earliest, is nobody's fault.
    pub(super) fn excuse(&mut self, until: Time) {
        self.excused_until = self.excused_until.max(until);
    }

    /// It stays, whoever wanted to part: its end is to be made good.
    pub(super) fn keep(&mut self, now: Time) {
        (self.state, self.excused_until) = (ConnectionState::Open, now);
    }

    /// Whether its end now is one on purpose.
    pub(super) fn is_pruned(&self, now: Time) -> bool {
        now < self.excused_until
    }

    /// A sign of life. Where it had left a question unanswered, and nothing was heard of it since, it was out of reach: a connection
    /// outlasts a cut of some twenty seconds. Returns whether it had taken leave, and is back.
    fn on_heard(&mut self, now: Time) -> bool {
        if let Some(since) = self.silent_since.take().filter(|since| self.heard_at <= *since) {
            self.returned_after = self.returned_after.max(Some(now - since));
        }
        self.heard_at = now;
        self.left_at.take_if(|at| now - *at >= LEAVE_OVER_AFTER).is_some()
    }

    /// Returns whether that was one silence too many.
    pub(super) fn on_silence(&mut self, now: Time, random: &mut Generator) -> bool {
        let wait = SUSPICION.saturating_mul(1 << self.silences.min(10)).min(SUSPICION_MAX);
        self.suspect_until = now + jittered(wait, random);
        self.silences = self.silences.saturating_add(1);
        self.silent_since.get_or_insert(now);
        self.silences >= SILENCES_MAX
    }

    pub(super) fn describe(&self, peer: PeerId, now: Time) -> Descriptor {
        let known = KnownPeer { peer, addresses: self.addresses.to_vec() };
        Descriptor { known, age_seconds: Moment::of(self.heard_at).age_seconds(now), profile: self.profile.clone() }
    }

    pub(super) fn shown(&self, now: Time) -> MemberView {
        let age_seconds = Moment::of(self.heard_at).age_seconds(now);
        MemberView { profile: self.profile.clone(), age_seconds, is_connected: true }
    }

    /// What to remember of it now that it is gone.
    pub(super) fn into_known(self, now: Time, random: &mut Generator) -> Known {
        // A peer that hangs up at once is like one that cannot be dialed; any other is redialed soon.
        let lasted = now - self.since >= CONNECTION_COUNTS_AFTER;
        let is_pruned = self.is_pruned(now);
        let mut known = Known {
            addresses: self.addresses,
            alive_at: Moment::of(self.heard_at),
            lost_at: None,
            teller: Teller::NOBODY,
            dial: Dial { failures: if lasted { 0 } else { self.failures }, ..Dial::default() },
            silences: self.silences,
            profile: self.profile,
        };
        if is_pruned {
            known.dial = Dial::pruned(now, random);
        } else {
            // It trains no more as far as is known here; who reaches it still passes its speed on.
            known.profile.tokens_per_second = 0.0;
            known.dial_failed(now, random);
        }
        known
    }
}

/// Connected members; at most [`CONNECTIONS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Connections {
    members: BTreeMap<PeerId, Connection>,
}

impl Connections {
    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerId, &Connection)> {
        self.members.iter().map(|(peer, connection)| (*peer, connection))
    }

    pub(super) fn get(&self, peer: PeerId) -> Option<&Connection> {
        self.members.get(&peer)
    }

    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Connection> {
        self.members.get_mut(&peer)
    }

    pub(super) fn insert(&mut self, peer: PeerId, connection: Connection) {
        self.members.insert(peer, connection);
    }

    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Connection> {
        self.members.remove(&peer)
    }

    pub(super) fn contains(&self, peer: PeerId) -> bool {
        self.members.contains_key(&peer)
    }

    pub(super) fn is_full(&self) -> bool {
        self.members.len() >= CONNECTIONS_MAX
    }

    /// Whether nobody is connected who is not about to go.
    pub(super) fn is_alone(&self) -> bool {
        !self.members.values().any(Connection::is_open)
    }

    pub(super) fn open_count(&self) -> usize {
        self.members.values().filter(|connection| connection.is_open()).count()
    }

    pub(super) fn healthy_count(&self, now: Time) -> usize {
        self.members.values().filter(|connection| connection.is_healthy(now)).count()
    }

    /// Those of them that transfers reach.
    pub(super) fn direct_count(&self, now: Time) -> usize {
        self.members.values().filter(|connection| connection.is_healthy(now) && connection.is_direct).count()
    }

    pub(super) fn on_path_changed(&mut self, peer: PeerId, is_direct: bool) {
        if let Some(connection) = self.members.get_mut(&peer) {
            connection.is_direct = is_direct;
            connection.range = connection.range.filter(|_| is_direct);
        }
    }

    /// Who may be asked for an exchange now.
    pub(super) fn partners(&self, now: Time) -> Vec<PeerId> {
        let may_be_asked = |connection: &Connection| {
            connection.is_healthy(now) && connection.is_direct && connection.avoid_until <= now
        };
        self.members.iter().filter(|(_, connection)| may_be_asked(connection)).map(|(peer, _)| *peer).collect()
    }

    /// When the next one may be asked that may not be now.
    pub(super) fn next_partner_at(&self, now: Time) -> Option<Time> {
        let stays = |connection: &&Connection| connection.is_open() && !connection.has_left() && connection.is_direct;
        let waiting = self.members.values().filter(stays).map(|it| it.avoid_until.max(it.suspect_until));
        waiting.filter(|until| *until > now).min()
    }

    pub(super) fn avoid(&mut self, peer: PeerId, until: Time) {
        if let Some(connection) = self.members.get_mut(&peer) {
            connection.avoid_until = until;
        }
    }

    /// A sign of life, which need not mean that the peer hears us. Returns whether it had taken leave, and is back.
    pub(super) fn on_heard(&mut self, now: Time, peer: PeerId) -> bool {
        self.members.get_mut(&peer).is_some_and(|connection| connection.on_heard(now))
    }

    /// The peer has answered a question, in time or late: messages pass in both directions.
    pub(super) fn on_answer(&mut self, now: Time, peer: PeerId) -> bool {
        let Some(connection) = self.members.get_mut(&peer) else { return false };
        (connection.silences, connection.suspect_until) = (0, now);
        connection.on_heard(now)
    }

    /// Remembers a declared speed and returns the median of all of connected members and `own`.
    pub(super) fn median_weight(&mut self, peer: PeerId, declared: f32, own: f32) -> f32 {
        if let Some(connection) = self.members.get_mut(&peer) {
            connection.on_weight(declared);
        }
        let mut seen = [own; CONNECTIONS_MAX + 1];
        let mut count = 1;
        for weight in self.members.values().filter_map(|connection| connection.weight) {
            seen[count] = weight;
            count += 1;
        }
        *seen[..count].select_nth_unstable_by(count / 2, f32::total_cmp).1
    }

    /// The open connections that may best be given up, at most `count`: suspects first, then those that have not become direct,
    /// then the oldest, never a busy one.
    pub(super) fn to_shed(&self, now: Time, count: usize, is_busy: impl Fn(PeerId) -> bool) -> Vec<PeerId> {
        let is_of_use = |it: &Connection| it.is_direct || now - it.since < HOLE_PUNCH_TIME;
        let may_go = |(peer, connection): &(&PeerId, &Connection)| connection.is_open() && !is_busy(**peer);
        let mut candidates: Vec<(bool, bool, Time, PeerId)> = self
            .members
            .iter()
            .filter(may_go)
            .map(|(peer, connection)| (!connection.is_suspect(), is_of_use(connection), connection.since, *peer))
            .collect();
        candidates.sort_unstable();
        candidates.into_iter().take(count).map(|(_, _, _, peer)| peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peer;
    use crate::random::stream;
    use crate::time::second;

    fn connected(count: u8) -> Connections {
        let mut connections = Connections::default();
        for number in 0..count {
            connections.insert(peer(number), Connection::new(second(u64::from(number)), None, &[]));
        }
        connections
    }

    #[test]
    fn a_silent_peer_is_asked_ever_more_rarely_until_it_answers() {
        let mut connections = connected(1);
        let mut random = stream(1, "test", &[]);
        let mut now = second(100);
        for wait in [10, 20, 40] {
            let connection = connections.get_mut(peer(0)).expect("connected");
            assert!(!connection.on_silence(now, &mut random));
            assert!(!connection.is_tellable(now));
            connections.on_heard(now, peer(0));
            assert_eq!(connections.partners(now + Duration::from_secs(wait).mul_f64(0.7)), []);
            now = now + Duration::from_secs(wait).mul_f64(1.3);
            assert_eq!(connections.partners(now), [peer(0)]);
        }
        connections.on_answer(now, peer(0));
        let connection = connections.get_mut(peer(0)).expect("connected");
        assert!(!connection.on_silence(now, &mut random), "counted from the beginning");
        (2..SILENCES_MAX).for_each(|_| assert!(!connection.on_silence(now, &mut random)));
        assert!(connection.on_silence(now, &mut random), "one too many");
    }

    #[test]
    fn who_has_taken_leave_is_no_partner_until_its_connection_closes() {
        let mut connections = connected(2);
        connections.get_mut(peer(0)).expect("connected").leave(second(1));
        assert_eq!(connections.partners(second(2)), [peer(1)]);
    }

    #[test]
    fn old_silences_outlast_a_connection() {
        let mut random = stream(1, "test", &[]);
        let mut connection = Connection::new(second(0), None, &[]);
        assert!((0..SILENCES_MAX).any(|_| connection.on_silence(second(10), &mut random)));
        let known = connection.into_known(second(10), &mut random);
        let mut again = Connection::new(second(20), Some(&known), &[]);
        assert!(again.on_silence(second(30), &mut random), "the next one is again too many");
    }

    #[test]
    fn the_median_is_that_of_the_connected() {
        let mut connections = connected(3);
        connections.median_weight(peer(0), 1.0, 10.0);
        connections.median_weight(peer(1), 2.0, 10.0);
        assert_eq!(connections.median_weight(peer(2), 30.0, 10.0), 10.0);
        connections.remove(peer(2));
        assert_eq!(connections.median_weight(peer(1), 3.0, 10.0), 3.0);
    }

    #[test]
    fn the_oldest_go_first_but_never_a_busy_one() {
        let mut connections = connected(5);
        let now = second(9);
        connections.get_mut(peer(3)).expect("connected").on_silence(now, &mut stream(1, "test", &[]));
        assert_eq!(connections.to_shed(now, 3, |busy| busy == peer(0)), [peer(3), peer(1), peer(2)]);
    }

    #[test]
    fn those_that_only_a_relay_leads_to_go_before_the_oldest_once_no_hole_was_punched() {
        let mut connections = connected(5);
        connections.on_path_changed(peer(4), false);
        let punched_by = second(4) + HOLE_PUNCH_TIME;
        assert_eq!(connections.to_shed(second(3) + HOLE_PUNCH_TIME, 2, |_| false), [peer(0), peer(1)]);
        assert_eq!(connections.to_shed(punched_by, 2, |_| false), [peer(4), peer(0)]);
    }

    #[test]
    fn a_peer_with_which_we_parted_is_not_redialed_soon_nor_suspected() {
        let mut random = stream(1, "test", &[]);
        let mut connection = Connection::new(second(0), None, &[]);
        connection.excuse(Time::MAX);
        let known = connection.into_known(second(1), &mut random);
        assert!(!known.is_suspect() && known.away(second(1000)).is_none());
        assert!(!known.dial.may_start(second(60)) && known.dial.may_start(second(600)));
        assert!(!known.dial.may_start_at_last(second(10)) && known.dial.may_start_at_last(second(60)));
    }
}
