//! Outlier detection: is this node within the swarm, or so far off that nobody lets its model in?
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

/// One exchange, as it bears on this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) partner: PeerId,
    /// Of the swarm, in steps, as the partner declared it.
    pub(super) progress: f64,
    /// Whether the partner hardly lets this model in.
    pub(super) is_rebuff: bool,
    /// Whether the distance has a reason: the two were apart.
    pub(super) is_excused: bool,
}

/// The last exchanges, oldest first, at most [`HISTORY`].
#[derive(Clone, Debug, Default)]
pub(crate) struct OutlierDetection {
    recent: VecDeque<Seen>,
}

impl OutlierDetection {
    pub(super) fn record(&mut self, seen: Seen) {
        if self.recent.len() == HISTORY {
            self.recent.pop_front();
        }
        self.recent.push_back(seen);
    }

    /// The median of what recent partners declared as the swarm's progress.
    pub(crate) fn progress(&self) -> Option<f64> {
        let mut progress: Vec<f64> = self.recent.iter().map(|seen| seen.progress).collect();
        progress.sort_by(f64::total_cmp);
        progress.get(progress.len() / 2).copied()
    }

    pub(crate) fn is_outlier(&self) -> bool {
        let mut rebuffed_by = self.recent.iter().filter(|seen| seen.is_rebuff).map(|seen| seen.partner);
        let Some(first) = rebuffed_by.next() else { return false };
        let (others, all) = rebuffed_by.fold((0, 1), |(others, all), by| (others + usize::from(by != first), all + 1));
        all >= REBUFFS && others > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(key: u8) -> PeerId {
        PeerId::from_public_key([key; 32])
    }

    fn seen(partner: PeerId, progress: f64, is_rebuff: bool) -> Seen {
        Seen { partner, progress, is_rebuff, is_excused: false }
    }

    #[test]
    fn what_several_partners_say_again_and_again_counts() {
        let mut detection = OutlierDetection::default();
        (0..8).for_each(|key| detection.record(seen(peer(key % 3), 1.0, true)));
        assert!(detection.is_outlier());
        (0..3).for_each(|key| detection.record(seen(peer(key), 1.0, false)));
        assert!(!detection.is_outlier());
    }

    #[test]
    fn one_forged_progress_does_not_move_the_median() {
        let mut detection = OutlierDetection::default();
        assert_eq!(detection.progress(), None);
        [40.0, 9e8, 42.0]
            .into_iter()
            .zip(0..)
            .for_each(|(progress, key)| detection.record(seen(peer(key), progress, true)));
        assert_eq!(detection.progress(), Some(42.0));
    }

    #[test]
    fn one_partner_alone_does_not() {
        let mut detection = OutlierDetection::default();
        (0..100).for_each(|_| detection.record(seen(peer(1), 1.0, true)));
        assert!(!detection.is_outlier());
    }
}
