//! Averaging in pairs without quantization: who meets whom, who waits for whom and for how long.
//!
//! Two methods rest on it. In NoLoCo (Kolehmainen et al., arXiv 2506.10911) all members are matched anew in each round, and
//! both of a pair wait for each other's vectors. In AD-PSGD (Lian et al. 2018, arXiv 1710.06952) a member meets a random
//! other one whenever it likes, and neither stops for it. [`matching`] says who meets whom in a round; [`Meeting`] is the
//! waiting.

use std::collections::BTreeSet;

use crate::Time;
use crate::collective::{SLACK, Timeouts};
use crate::exchange::TimeoutEstimator;
use crate::random::{RngExt, stream};

/// Waits in vain double the deadline so often at most.
const DOUBLINGS_MAX: u32 = 2;

/// A member's number, from 0: these methods have a fixed set of them.
pub type Place = u16;

/// The partner of each member in a round: a random perfect matching. With an odd number one has none.
pub fn matching(seed: u64, round: u64, members: usize) -> Vec<Option<Place>> {
    let mut dice = stream(seed, "pairs", &[&round.to_le_bytes()]);
    let mut order: Vec<usize> = (0..members).collect();
    for last in (1..members).rev() {
        order.swap(last, dice.random_range(0..=last));
    }
    let mut partners = vec![None; members];
    for pair in order.chunks_exact(2) {
        partners[pair[0]] = Some(pair[1] as Place);
        partners[pair[1]] = Some(pair[0] as Place);
    }
    partners
}

/// One member's wait for its partner of a round.
#[derive(Clone, Debug)]
pub struct Meeting {
    round: u64,
    since: Option<Time>,
    /// Rounds whose partner's vector has arrived, not below the present one.
    arrived: BTreeSet<u64>,
    timeout: TimeoutEstimator,
    /// Rounds that ended without the partner.
    pub missed: u64,
    /// Vectors that came twice or too late.
    pub ignored: u64,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// With the partner's vector, which is to be used once.
    Both,
    /// The partner's vector did not come in time.
    Alone,
}

impl Meeting {
    /// At the beginning of round 0.
    pub fn new(timeouts: Timeouts) -> Meeting {
        Meeting {
            round: 0,
            since: None,
            arrived: BTreeSet::new(),
            timeout: TimeoutEstimator::new(timeouts.initial, timeouts.floor, DOUBLINGS_MAX),
            missed: 0,
            ignored: 0,
        }
    }

    /// The present round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The own vector of this round is on its way; from now on the partner's is waited for.
    pub fn ready(&mut self, now: Time) -> Option<Met> {
        self.since = Some(now);
        self.try_end(now)
    }

    /// The partner's vector of a round has arrived. Returns whether it is to be kept.
    pub fn received(&mut self, round: u64) -> bool {
        let is_new = round >= self.round && self.arrived.insert(round);
        self.ignored += u64::from(!is_new);
        is_new
    }

    /// Ends the round where the partner's vector is there, or its time is over.
    pub fn try_end(&mut self, now: Time) -> Option<Met> {
        let since = self.since?;
        let waited = now.saturating_since(since);
        let met = if self.arrived.remove(&self.round) {
            self.timeout.record(SLACK * waited);
            Met::Both
        } else if waited >= self.timeout.limit() {
            self.timeout.record_in_vain();
            self.missed += 1;
            Met::Alone
        } else {
            return None;
        };
        self.since = None;
        self.round += 1;
        self.arrived.retain(|round| *round >= self.round);
        Some(met)
    }

    /// When [`try_end`](Self::try_end) is to be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.since.map(|since| since + self.timeout.limit())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn everybody_has_one_partner_who_has_them() {
        for members in 1..=9 {
            let mut met = BTreeSet::new();
            for round in 0..200 {
                let partners = matching(7, round, members);
                let alone = partners.iter().filter(|partner| partner.is_none()).count();
                assert_eq!(alone, members % 2);
                for (place, partner) in partners.iter().enumerate() {
                    if let Some(partner) = partner {
                        assert!(
                            partners[usize::from(*partner)] == Some(place as Place) && usize::from(*partner) != place
                        );
                        met.insert((place, *partner));
                    }
                }
            }
            assert_eq!(met.len(), members * (members - 1), "in time everybody meets everybody");
        }
    }

    #[test]
    fn a_round_ends_once_with_the_partner_or_at_its_deadline() {
        let at = |seconds| Time::from_start(Duration::from_secs(seconds));
        let timeouts =
            Timeouts { initial: Duration::from_secs(4), floor: Duration::from_secs(1), ..Timeouts::default() };
        let mut meeting = Meeting::new(timeouts);
        assert!(meeting.received(1) && !meeting.received(1), "early, and twice");
        assert_eq!(meeting.ready(at(10)), None);
        assert_eq!((meeting.try_end(at(13)), meeting.next_deadline()), (None, Some(at(14))));
        assert_eq!(meeting.try_end(at(14)), Some(Met::Alone));
        assert_eq!(meeting.try_end(at(14)), None, "once");
        assert!(!meeting.received(0), "too late");
        assert_eq!(meeting.ready(at(20)), Some(Met::Both), "it came early");
        assert_eq!((meeting.missed, meeting.ignored), (1, 2));
    }
}
