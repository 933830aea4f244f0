//! Outlier detection: is this node within the swarm, or so far off that nobody lets its model in?
//!
//! A node that stood still for long, was alone, or copied from a liar finds that every partner clips it to almost nothing,
//! or stands at another progress. It can then wait for ever, or copy the model anew, as a joiner does. Only what several
//! partners say counts. Of two members that are alone with each other, the one whose progress lags behind is the outlier.

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
    /// Whether the swarm's progress, as the partner declared it, is ahead of ours by more than any honest pace explains.
    pub(super) is_behind: bool,
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

    /// The median of what recent partners of an outlier declared as the swarm's progress; `None` for a node that is none.
    /// `others`: how many members of the swarm this node knows of.
    pub(crate) fn progress_missed(&self, others: impl FnOnce() -> usize) -> Option<f64> {
        let is_outlier = self.is_rebuffed_by_several() || (self.is_left_behind() && others() == 1);
        if !is_outlier {
            return None;
        }
        let mut progress: Vec<f64> = self.recent.iter().map(|seen| seen.progress).collect();
        progress.sort_by(f64::total_cmp);
        progress.get(progress.len() / 2).copied()
    }

    fn is_rebuffed_by_several(&self) -> bool {
        let mut rebuffed_by = self.recent.iter().filter(|seen| seen.is_rebuff).map(|seen| seen.partner);
        let Some(first) = rebuffed_by.next() else { return false };
        let (others, all) = rebuffed_by.fold((0, 1), |(others, all), by| (others + usize::from(by != first), all + 1));
        all >= REBUFFS && others > 0
    }

    fn is_left_behind(&self) -> bool {
        self.recent.iter().filter(|seen| seen.is_rebuff && seen.is_behind).count() >= REBUFFS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peer;

    fn seen(partner: PeerId, progress: f64, is_rebuff: bool) -> Seen {
        Seen { partner, progress, is_rebuff, is_behind: false, is_excused: false }
    }

    #[test]
    fn what_several_partners_say_again_and_again_counts() {
        let mut detection = OutlierDetection::default();
        (0..8).for_each(|key| detection.record(seen(peer(key % 3), 1.0, true)));
        assert_eq!(detection.progress_missed(|| 3), Some(1.0));
        (0..3).for_each(|key| detection.record(seen(peer(key), 1.0, false)));
        assert_eq!(detection.progress_missed(|| 3), None);
    }

    #[test]
    fn one_forged_progress_does_not_move_the_median() {
        let mut detection = OutlierDetection::default();
        let declared = [40.0, 9e8, 42.0, 41.0, 43.0, 42.0];
        declared.into_iter().zip(0..).for_each(|(progress, key)| detection.record(seen(peer(key), progress, true)));
        assert_eq!(detection.progress_missed(|| 6), Some(42.0));
    }

    #[test]
    fn one_partner_alone_does_not() {
        let mut detection = OutlierDetection::default();
        (0..100).for_each(|_| detection.record(seen(peer(1), 1.0, true)));
        assert_eq!([1, 2].map(|others| detection.progress_missed(|| others)), [None; 2]);
    }

    #[test]
    fn of_two_members_the_one_behind_is_the_outlier() {
        let mut detection = OutlierDetection::default();
        (0..REBUFFS).for_each(|_| detection.record(Seen { is_behind: true, ..seen(peer(1), 9000.0, true) }));
        assert_eq!(detection.progress_missed(|| 1), Some(9000.0));
        assert_eq!(detection.progress_missed(|| 2), None, "a third could be asked");
        let mut excused = OutlierDetection::default();
        (0..REBUFFS).for_each(|_| excused.record(Seen { is_behind: true, ..seen(peer(1), 9000.0, false) }));
        assert_eq!(excused.progress_missed(|| 1), None);
    }
}
