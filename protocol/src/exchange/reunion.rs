//! Who comes back from another part of the swarm: models that were apart have gone their own ways, honestly, and nobody is
//! judged by a distance that a split or a standstill has made.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::CONNECTIONS_MAX;
use crate::peer::PeerId;
use crate::time::Time;

/// Rounds without exchanges in which two models go their own ways: distances grow at least as the root of their number, and
/// beyond twice the usual an honest peer would lose its trust.
pub(super) const ROUNDS_APART: f64 = 10.0;

/// Exchanges with a peer from another part before it is judged by its distance: one for every [`ROUNDS_PER_EXCHANGE`]
/// apart, up to so many (guesses: by then the usual distance has followed).
const EXCHANGES: u32 = 10;
const ROUNDS_PER_EXCHANGE: f64 = 3.0;

/// As long as a peer comes nearer it is not judged, but not for longer than this.
const EXCHANGES_MAX: u32 = 40;

/// A peer is excused so many times more than it is judged: one that leaves and comes back again and again would never be (a
/// guess: two long reunions).
const EXCUSES_MAX: u32 = 2 * EXCHANGES_MAX;

/// Exchanges in which a peer that has come nearer may come nearer again: its distance falls by fits and starts.
const NEARER_AGAIN_WITHIN: u32 = 4;

/// What this node knows of splits.
#[derive(Debug, Default)]
pub(super) struct Reunions {
    /// Peers that have come back, at most [`CONNECTIONS_MAX`].
    peers: BTreeMap<PeerId, Reunion>,
    /// Since when peers have said that they rest, at most [`CONNECTIONS_MAX`].
    resting: BTreeMap<PeerId, Time>,
    /// The last split of the swarm.
    split: Option<Split>,
    /// When each peer's model was last merged, at most [`CONNECTIONS_MAX`].
    merged_at: BTreeMap<PeerId, Time>,
    /// By how much peers were excused more often than judged; at most twice [`CONNECTIONS_MAX`].
    excuses: BTreeMap<PeerId, u32>,
    /// Exchanges in which nobody is judged, for this node itself stood still.
    own_left: u32,
}

/// A peer that has come back.
#[derive(Clone, Copy, Debug)]
struct Reunion {
    away: Duration,
    exchanges: u32,
    exchanges_left: u32,
    /// The least distance so far.
    nearest: f64,
}

/// A time in which a part of the swarm was out of reach.
#[derive(Clone, Copy, Debug)]
struct Split {
    began: Time,
    lasted: Duration,
    /// Until then members of that part may still be met for the first time.
    over: Time,
    exchanges: u32,
}

/// What an exchange is beside its distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    /// How long the partner was away, where it is the first exchange since.
    pub(super) first_after: Option<Duration>,
    /// Whether the distance has a reason, so that it says nothing of the partner.
    pub(super) is_excused: bool,
}

impl Reunions {
    /// A peer is back that was out of reach for `away`, or so many rounds.
    pub(super) fn on_return(&mut self, now: Time, peer: PeerId, away: Duration, rounds: f64) {
        let (began, exchanges) = (Time::ZERO + now.saturating_since(Time::ZERO + away), exchanges(rounds));
        self.split = Some(Split { began, lasted: away, over: now + away, exchanges });
        self.expect(peer, away, exchanges);
    }

    /// A connected peer says that its owner wants the network left alone: it trains on by itself.
    pub(super) fn on_rest(&mut self, now: Time, peer: PeerId) {
        self.resting.entry(peer).or_insert(now);
        if self.resting.len() > CONNECTIONS_MAX {
            drop_oldest(&mut self.resting);
        }
    }

    /// A peer takes part. Returns for how long it has rested, where it has.
    pub(super) fn take_rest(&mut self, now: Time, peer: PeerId) -> Option<Duration> {
        self.resting.remove(&peer).map(|since| now - since)
    }

    /// A peer is back that has rested for so many rounds. Of others that says nothing.
    pub(super) fn on_rest_over(&mut self, peer: PeerId, rested: Duration, rounds: f64) {
        self.expect(peer, rested, exchanges(rounds));
    }

    /// A model was merged that was so far away, after so many rounds in which this node had merged none.
    pub(super) fn on_merge(&mut self, now: Time, peer: PeerId, distance: f64, rounds: f64) -> Meeting {
        let before = self.merged_at.insert(peer, now);
        if self.merged_at.len() > CONNECTIONS_MAX {
            drop_oldest(&mut self.merged_at);
        }
        // Who comes back first tells of the others of its part, so that they count as lost no longer.
        if let Some(split) = self.split
            && now < split.over
            && before.is_some_and(|before| before < split.began)
            && !self.peers.contains_key(&peer)
        {
            self.expect(peer, split.lasted, split.exchanges);
        }
        if rounds >= ROUNDS_APART {
            self.own_left = exchanges(rounds);
        }
        let stood_still = self.own_left > 0;
        self.own_left = self.own_left.saturating_sub(1);
        let Some(reunion) = self.peers.get_mut(&peer) else {
            if let Some(excuses) = self.excuses.get_mut(&peer).filter(|_| !stood_still) {
                *excuses = excuses.saturating_sub(1);
            }
            return Meeting { first_after: None, is_excused: stood_still };
        };
        *self.excuses.entry(peer).or_default() += 1;
        if distance < reunion.nearest {
            reunion.nearest = distance;
            reunion.exchanges_left = reunion.exchanges_left.max(NEARER_AGAIN_WITHIN);
        }
        let first_after = (reunion.exchanges == 0).then_some(reunion.away);
        reunion.exchanges += 1;
        reunion.exchanges_left -= 1;
        if reunion.exchanges_left == 0 || reunion.exchanges == EXCHANGES_MAX {
            self.peers.remove(&peer);
        }
        Meeting { first_after, is_excused: true }
    }

    fn expect(&mut self, peer: PeerId, away: Duration, exchanges_left: u32) {
        self.excuses.retain(|_, excuses| *excuses > 0);
        if self.excuses.get(&peer).is_some_and(|excuses| *excuses >= EXCUSES_MAX) {
            return;
        }
        if self.excuses.len() >= CONNECTIONS_MAX {
            let fewest = self.excuses.iter().min_by_key(|(_, excuses)| **excuses).map(|(peer, _)| *peer);
            fewest.map(|fewest| self.excuses.remove(&fewest));
        }
        if self.peers.len() >= CONNECTIONS_MAX {
            self.peers.pop_first();
        }
        self.peers.insert(peer, Reunion { away, exchanges: 0, exchanges_left, nearest: f64::INFINITY });
    }
}

/// Forgets who was noted first.
fn drop_oldest(times: &mut BTreeMap<PeerId, Time>) {
    let oldest = times.iter().min_by_key(|(_, at)| **at).map(|(peer, _)| *peer);
    oldest.map(|oldest| times.remove(&oldest));
}

/// For how many exchanges nobody is judged after so many rounds apart.
fn exchanges(rounds: f64) -> u32 {
    (rounds / ROUNDS_PER_EXCHANGE).max(1.0).min(f64::from(EXCHANGES)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peer;
    use crate::time::second;

    /// Exchanges with a peer in which it is excused, its distances being these.
    fn excused(reunions: &mut Reunions, peer: PeerId, distances: impl Iterator<Item = f64>) -> usize {
        distances.take_while(|distance| reunions.on_merge(second(100), peer, *distance, 1.0).is_excused).count()
    }

    fn far() -> impl Iterator<Item = f64> {
        std::iter::repeat_n(9.0, 100)
    }

    const AWAY: Duration = Duration::from_secs(20);

    #[test]
    fn who_stays_far_is_judged_soon_and_who_comes_nearer_later() {
        let mut reunions = Reunions::default();
        assert_eq!(excused(&mut reunions, peer(1), far()), 0, "it was never away");
        reunions.on_return(second(100), peer(1), AWAY, 12.0);
        assert_eq!(excused(&mut reunions, peer(1), far()), 4, "twelve rounds");
        reunions.on_return(second(100), peer(1), AWAY, 600.0);
        assert_eq!(excused(&mut reunions, peer(1), far()), 10);
        reunions.on_return(second(100), peer(1), AWAY, 600.0);
        assert_eq!(excused(&mut reunions, peer(1), (0..20).map(|step| 90.0 - f64::from(step / 3))), 20);
        reunions.on_return(second(100), peer(1), AWAY, 600.0);
        assert_eq!(excused(&mut reunions, peer(1), (0..100).map(|step| 200.0 - f64::from(step))), 40, "not for ever");
    }

    #[test]
    fn who_leaves_and_comes_back_again_and_again_is_judged_after_all() {
        let mut reunions = Reunions::default();
        let mut come_back = || {
            reunions.on_return(second(100), peer(1), AWAY, 600.0);
            // It leaves before it would be judged.
            (0..10).filter(|_| reunions.on_merge(second(100), peer(1), 9.0, 1.0).is_excused).count()
        };
        assert_eq!([(); 8].map(|()| come_back()), [10; 8]);
        assert_eq!(come_back(), 0, "none before it is judged as often");
        assert_eq!(come_back(), 10);
    }

    #[test]
    fn who_has_rested_is_excused_and_tells_nothing_of_others() {
        let mut reunions = Reunions::default();
        for key in [1, 2] {
            reunions.on_merge(second(5), peer(key), 1.0, 1.0);
        }
        reunions.on_rest(second(10), peer(1));
        reunions.on_rest(second(60), peer(1));
        assert_eq!(reunions.take_rest(second(100), peer(1)), Some(Duration::from_secs(90)), "since it said so first");
        assert_eq!(reunions.take_rest(second(100), peer(1)), None);
        reunions.on_rest_over(peer(1), Duration::from_secs(90), 12.0);
        assert_eq!(excused(&mut reunions, peer(2), far()), 0);
        assert_eq!(excused(&mut reunions, peer(1), far()), 4);
    }

    #[test]
    fn of_many_that_rest_and_never_come_back_the_first_are_forgotten() {
        let mut reunions = Reunions::default();
        let count = CONNECTIONS_MAX as u64 + 1;
        (0..count).for_each(|at| reunions.on_rest(second(at), peer(at as u8)));
        assert_eq!(reunions.take_rest(second(100), peer(0)), None);
        assert_eq!(reunions.take_rest(second(100), peer(count as u8 - 1)), Some(Duration::from_secs(101 - count)));
        assert_eq!(reunions.resting.len(), CONNECTIONS_MAX - 1);
    }

    #[test]
    fn all_of_the_other_part_are_excused_and_nobody_of_the_own() {
        let mut reunions = Reunions::default();
        for (when, key) in [(10, 1), (10, 2), (90, 3)] {
            reunions.on_merge(second(when), peer(key), 1.0, 1.0);
        }
        reunions.on_return(second(100), peer(1), Duration::from_secs(60), 30.0);
        let meeting = |reunions: &mut Reunions, key| reunions.on_merge(second(101), peer(key), 9.0, 1.0);
        let first = Meeting { first_after: Some(Duration::from_secs(60)), is_excused: true };
        assert_eq!([1, 2].map(|key| meeting(&mut reunions, key)), [first; 2]);
        assert_eq!(meeting(&mut reunions, 1), Meeting { first_after: None, is_excused: true });
        assert!(!meeting(&mut reunions, 3).is_excused, "it was here all the time");
        assert!(!meeting(&mut reunions, 4).is_excused, "nobody knows where it was");
    }

    #[test]
    fn who_stood_still_itself_judges_nobody_at_first() {
        let mut reunions = Reunions::default();
        assert!(!reunions.on_merge(second(1), peer(1), 1.0, 9.0).is_excused);
        assert!(reunions.on_merge(second(2), peer(1), 9.0, 30.0).is_excused);
        assert_eq!(excused(&mut reunions, peer(1), far()), 9);
    }
}
