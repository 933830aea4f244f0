//! Whom to believe, and how far: misbehaviour scores with bans, and trust that scales what a peer may change.
//!
//! Clipping bounds one exchange; alone it does not hold against a fifth of hostile nodes, who come back every time. So a
//! peer whose models lie further away than others', exchange after exchange, is let in less and less, and who sends what
//! no honest peer sends is banned for a while. Nothing is for ever: machines are repaired, and identities are cheap.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::{BAN_FIRST, BAN_MAX, CLIP_HISTORY, REPUTATIONS_MAX};
use crate::misbehaviour::Misbehaviour;
use crate::peer::PeerId;
use crate::time::Time;

/// Points at which a peer is banned.
const BAN_AT: f64 = 4.0;

/// One point is forgiven in this time: one accident an hour is no habit.
const POINT_FORGIVEN_IN: Duration = Duration::from_secs(600);

/// A distance beyond this many usual ones is odd: one that the default of `gossip.clip_factor` clips. Honest members whose own
/// optimum is far from the mean are at 1.4 to 2.2; were these odd, they would be let in less, and own training would take them out
/// of the swarm.
const ODD_DISTANCE: f64 = 2.5;

/// An exchange in which more than this share of the blocks wrapped is odd.
const ODD_MASKED_SHARE: f64 = 0.5;

/// Weight of the newest exchange in a peer's running share of odd ones: about the last six count.
const NEWEST: f64 = 0.15;

/// Exchanges before the share counts.
const EXCHANGES_MIN: u32 = 3;

/// Exchanges before a peer is called distrusted (a guess). The first ones with a newcomer are often odd, for its model is
/// younger and what is usual is not known yet; by then three odd ones in the beginning are forgiven.
const DISTRUSTED_AFTER: u32 = 8;

/// What a peer of no trust at all may still change: honest nodes that are far off for good must be able to come back.
const TRUST_MIN: f64 = 0.02;

/// Trust above which the outer momentum is averaged with a peer, too.
const TRUSTED: f64 = 0.8;

/// Nobody is asked for a model or its check who is trusted less than this share of the best (a guess). For exchanges this
/// does not count: two halves of a swarm that were apart distrust each other, and must meet.
const BELIEVABLE: f64 = 0.3;

/// A peer's record.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    points: f64,
    points_at: Time,
    /// Bans so far; each doubles the next.
    bans: u32,
    exchanges: u32,
    /// Running share of odd exchanges.
    odd_share: f64,
    /// The last one, by the count of all.
    last: u64,
}

/// What an exchange showed of a partner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Impression {
    /// Distance over the usual one; 1 where that is not known yet.
    pub(crate) distance: f64,
    /// Share of blocks that wrapped, 0 to 1.
    pub(crate) masked_share: f64,
    /// Its swarm progress lies further from ours than any honest pace explains.
    pub(crate) is_progress_odd: bool,
}

/// All records, at most [`REPUTATIONS_MAX`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Reputation {
    peers: BTreeMap<PeerId, Record>,
    /// Exchanges with anybody.
    exchanges: u64,
}

impl Reputation {
    /// Counts a misbehaviour; returns for how long the peer is now to be banned, if it is.
    pub(crate) fn on_misbehaviour(&mut self, now: Time, peer: PeerId, what: &Misbehaviour) -> Option<Duration> {
        let record = self.entry(peer);
        record.points = record.points_now(now) + points(what);
        record.points_at = now;
        if record.points < BAN_AT {
            return None;
        }
        record.points = BAN_AT / 2.0;
        record.bans += 1;
        Some(BAN_FIRST.saturating_mul(1 << (record.bans - 1).min(10)).min(BAN_MAX))
    }

    /// Takes in an exchange; returns the peer's trust from now on.
    pub(crate) fn on_exchange(&mut self, peer: PeerId, impression: Impression) -> f64 {
        let is_odd = impression.distance > ODD_DISTANCE
            || impression.masked_share > ODD_MASKED_SHARE
            || impression.is_progress_odd;
        self.exchanges += 1;
        let last = self.exchanges;
        let record = self.entry(peer);
        record.exchanges += 1;
        record.last = last;
        record.odd_share += NEWEST * (f64::from(u8::from(is_odd)) - record.odd_share);
        self.trust(peer)
    }

    /// How much of the usual clip norm a peer may use, 0 to 1: its trust over that of the best recent partner. Where all
    /// are far off alike, it is this node that is, or something has happened to all, and nobody is to blame for it. Who
    /// takes all places among the recent partners has long set what is usual as well.
    pub(crate) fn influence(&self, peer: PeerId) -> f64 {
        let is_recent = |record: &Record| self.exchanges - record.last < CLIP_HISTORY as u64;
        let recent = self.peers.iter().filter(|(_, record)| record.exchanges >= EXCHANGES_MIN && is_recent(record));
        let trust = self.trust(peer);
        trust / recent.map(|(peer, _)| self.trust(*peer)).fold(trust, f64::max)
    }

    /// How near a peer's models were to this one's, 0 to 1.
    pub(crate) fn trust(&self, peer: PeerId) -> f64 {
        match self.peers.get(&peer) {
            Some(record) if record.exchanges >= EXCHANGES_MIN => {
                let even_share = 1.0 - record.odd_share;
                (even_share * even_share * even_share).max(TRUST_MIN)
            }
            _ => 1.0,
        }
    }

    /// Whether a peer has earned more than the usual.
    pub(crate) fn is_trusted(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|record| record.exchanges >= EXCHANGES_MIN) && self.trust(peer) >= TRUSTED
    }

    /// This node is the one that is far off: that others were far from it speaks against nobody. Misbehaviour stays.
    pub(crate) fn forget_distances(&mut self) {
        for record in self.peers.values_mut() {
            (record.exchanges, record.odd_share) = (0, 0.0);
        }
    }

    /// Leaves out of `peers` those that are trusted much less than the best of them. Against somebody who is far from all
    /// others this does nothing: to it, all are odd alike.
    pub(crate) fn retain_believable(&self, peers: &mut Vec<PeerId>) {
        let best = peers.iter().map(|peer| self.trust(*peer)).fold(0.0, f64::max);
        peers.retain(|peer| self.trust(*peer) >= BELIEVABLE * best);
    }

    /// Peers of little trust, with it: not those that are merely new.
    pub(crate) fn distrusted(&self) -> impl Iterator<Item = (PeerId, f64)> + '_ {
        let known = self.peers.iter().filter(|(_, record)| record.exchanges >= DISTRUSTED_AFTER);
        known.map(|(peer, _)| (*peer, self.trust(*peer))).filter(|(_, trust)| *trust < TRUSTED / 2.0)
    }

    fn entry(&mut self, peer: PeerId) -> &mut Record {
        if self.peers.len() >= REPUTATIONS_MAX && !self.peers.contains_key(&peer) {
            // Whoever has the least against it is missed the least.
            let blame = |record: &Record| record.points + f64::from(record.bans) + record.odd_share;
            let mildest = self.peers.iter().min_by(|one, other| blame(one.1).total_cmp(&blame(other.1)));
            mildest.map(|(peer, _)| *peer).map(|peer| self.peers.remove(&peer));
        }
        self.peers.entry(peer).or_default()
    }
}

impl Record {
    fn points_now(&self, now: Time) -> f64 {
        let forgiven = (now - self.points_at).as_secs_f64() / POINT_FORGIVEN_IN.as_secs_f64();
        (self.points - forgiven).max(0.0)
    }
}

/// How much a misbehaviour weighs. What an accident or a restart can cause weighs little.
fn points(what: &Misbehaviour) -> f64 {
    match what {
        Misbehaviour::Garbage(_) | Misbehaviour::WrongLayout | Misbehaviour::Forged => 2.0,
        Misbehaviour::WrongLength { .. } | Misbehaviour::OutOfRange(_) => 1.5,
        Misbehaviour::Stalled => 1.0,
        Misbehaviour::Disagreement | Misbehaviour::Unsolicited => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peer;
    use crate::time::second;

    fn impression(distance: f64) -> Impression {
        Impression { distance, masked_share: 0.0, is_progress_odd: false }
    }

    #[test]
    fn a_habit_is_banned_for_longer_each_time_and_an_accident_is_not() {
        let mut reputation = Reputation::default();
        let forged = Misbehaviour::OutOfRange("scale".into());
        for hour in 0..20 {
            assert_eq!(reputation.on_misbehaviour(second(3600 * hour), peer(1), &forged), None, "once an hour");
        }
        let bans: Vec<Duration> =
            (0..12).filter_map(|at| reputation.on_misbehaviour(second(at), peer(2), &forged)).collect();
        assert!(bans.len() >= 3 && bans.windows(2).all(|pair| pair[1] > pair[0]), "{bans:?}");
        assert!(bans.iter().all(|ban| *ban <= BAN_MAX));
    }

    #[test]
    fn a_peer_that_is_always_far_away_loses_its_influence_and_may_win_it_back() {
        let mut reputation = Reputation::default();
        (0..30).for_each(|_| {
            reputation.on_exchange(peer(1), impression(3.0));
        });
        assert_eq!(reputation.trust(peer(1)), TRUST_MIN);
        (0..30).for_each(|_| {
            reputation.on_exchange(peer(1), impression(1.0));
        });
        assert!(reputation.trust(peer(1)) > 0.9);
    }

    #[test]
    fn a_peer_that_is_merely_new_is_not_distrusted() {
        let mut reputation = Reputation::default();
        (0..3).for_each(|_| {
            reputation.on_exchange(peer(1), impression(3.0));
            assert_eq!(reputation.distrusted().count(), 0, "its first exchanges");
        });
        (0..20).for_each(|_| {
            reputation.on_exchange(peer(1), impression(1.0));
            assert_eq!(reputation.distrusted().count(), 0, "it has come near");
        });
        (0..8).for_each(|_| {
            reputation.on_exchange(peer(2), impression(3.0));
        });
        assert!(reputation.distrusted().map(|(peer, _)| peer).eq([peer(2)]), "always far off");
    }

    #[test]
    fn who_is_odd_among_others_is_not_asked_and_who_finds_all_odd_asks_all() {
        let mut reputation = Reputation::default();
        (0..30).for_each(|_| {
            reputation.on_exchange(peer(1), impression(9.0));
            reputation.on_exchange(peer(2), impression(1.0));
        });
        let mut peers = vec![peer(1), peer(2), peer(3)];
        reputation.retain_believable(&mut peers);
        assert_eq!(peers, [peer(2), peer(3)]);
        let mut peers = vec![peer(1)];
        reputation.retain_believable(&mut peers);
        assert_eq!(peers, [peer(1)]);
    }

    #[test]
    fn a_node_that_is_far_off_itself_asks_all_and_those_it_has_banned_stay_banned_for_longer() {
        let mut reputation = Reputation::default();
        let garbage = Misbehaviour::Garbage(String::new());
        let banned: Vec<Duration> =
            (0..3).filter_map(|_| reputation.on_misbehaviour(second(0), peer(1), &garbage)).collect();
        (0..30).for_each(|_| {
            reputation.on_exchange(peer(1), impression(9.0));
            reputation.on_exchange(peer(2), impression(1.0));
        });
        reputation.forget_distances();
        let mut peers = vec![peer(1), peer(2)];
        reputation.retain_believable(&mut peers);
        assert_eq!(peers, [peer(1), peer(2)]);
        let again: Vec<Duration> =
            (0..3).filter_map(|_| reputation.on_misbehaviour(second(1), peer(1), &garbage)).collect();
        assert!(again[0] > banned[0], "{again:?} {banned:?}");
    }

    #[test]
    fn who_is_far_off_has_little_influence_beside_one_who_is_near_and_as_much_as_usual_alone() {
        let mut reputation = Reputation::default();
        (0..30).for_each(|_| {
            reputation.on_exchange(peer(1), impression(9.0));
            reputation.on_exchange(peer(2), impression(1.0));
        });
        assert!(reputation.influence(peer(1)) < 0.03 && reputation.influence(peer(2)) == 1.0);
        let alone = |reputation: &mut Reputation, times: usize| {
            (0..times).for_each(|_| {
                reputation.on_exchange(peer(1), impression(9.0));
            });
        };
        alone(&mut reputation, CLIP_HISTORY - 1);
        assert!(reputation.influence(peer(1)) < 0.03, "the other is not forgotten yet");
        alone(&mut reputation, 1);
        assert_eq!(reputation.influence(peer(1)), 1.0, "all that are left are far off");
        reputation.on_exchange(peer(2), impression(1.0));
        assert!(reputation.influence(peer(1)) < 0.03);
        assert_eq!(reputation.influence(peer(3)), 1.0, "not known yet");
    }

    #[test]
    fn one_odd_exchange_in_ten_hardly_matters() {
        let mut reputation = Reputation::default();
        for exchange in 0..100 {
            reputation.on_exchange(peer(1), impression(if exchange % 10 == 0 { 2.0 } else { 1.0 }));
        }
        assert!(reputation.trust(peer(1)) > 0.5, "{}", reputation.trust(peer(1)));
    }

    #[test]
    fn a_flood_of_strangers_does_not_push_out_the_worst() {
        let mut reputation = Reputation::default();
        (0..30).for_each(|_| {
            reputation.on_exchange(peer(1), impression(9.0));
        });
        for number in 0..2 * REPUTATIONS_MAX as u64 {
            let mut key = [9; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            reputation.on_exchange(PeerId::from_public_key(key), impression(1.0));
        }
        assert_eq!(reputation.trust(peer(1)), TRUST_MIN);
        assert!(reputation.peers.len() <= REPUTATIONS_MAX);
    }
}
