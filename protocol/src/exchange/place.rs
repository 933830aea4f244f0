//! Where a node stands in the swarm: within it, or so far off that nobody lets its model in.
//!
//! A node that stood still for long, was alone, or copied from a liar finds that every partner clips it to almost nothing,
//! or stands at another progress. It can then wait for ever, or copy the model anew, as a joiner does. Only what several
//! partners say counts.

use std::collections::VecDeque;

use crate::peer::PeerId;

/// Exchanges looked back on.
const HISTORY: usize = 8;

/// Rebuffs among them that make an outlier (a guess: a fifth of hostile partners reach this once in 10^4 times).
const REBUFFS: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Seen {
    partner: PeerId,
    is_rebuff: bool,
}

/// The last exchanges, oldest first, at most [`HISTORY`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    recent: VecDeque<Seen>,
}

impl Place {
    pub(crate) fn record(&mut self, partner: PeerId, is_rebuff: bool) {
        if self.recent.len() == HISTORY {
            self.recent.pop_front();
        }
        self.recent.push_back(Seen { partner, is_rebuff });
    }

    pub(crate) fn is_outlier(&self) -> bool {
        let mut rebuffed_by: Vec<PeerId> =
            self.recent.iter().filter(|seen| seen.is_rebuff).map(|seen| seen.partner).collect();
        if rebuffed_by.len() < REBUFFS {
            return false;
        }
        rebuffed_by.sort();
        rebuffed_by.dedup();
        rebuffed_by.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(key: u8) -> PeerId {
        PeerId::from_public_key([key; 32])
    }

    #[test]
    fn what_several_partners_say_again_and_again_counts() {
        let mut place = Place::default();
        (0..8).for_each(|key| place.record(peer(key % 3), true));
        assert!(place.is_outlier());
        (0..3).for_each(|key| place.record(peer(key), false));
        assert!(!place.is_outlier());
    }

    #[test]
    fn one_partner_alone_does_not() {
        let mut place = Place::default();
        (0..100).for_each(|_| place.record(peer(1), true));
        assert!(!place.is_outlier());
    }
}
