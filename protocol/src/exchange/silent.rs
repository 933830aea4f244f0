//! Partners that accept an exchange and then say nothing until its deadline.
//!
//! Such a silence is the partner's, or of this node's own line. Where the exchange before it was merged, the line is sound, and the
//! silence is held against the partner alone: while others can be asked it is passed over for a while, and is then given twice as
//! long, so that one that is merely slow is met in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::{EXCHANGE_DOUBLINGS_MAX, SILENT_PARTNERS_MAX, SILENT_PASSED_OVER_FACTOR};
use crate::fragments::Holding;
use crate::peer::PeerId;
use crate::time::Time;

/// What this node's own exchanges know of such partners.
#[derive(Debug, Default)]
pub(super) struct SilentPartners {
    /// At most [`SILENT_PARTNERS_MAX`].
    partners: BTreeMap<PeerId, Silences>,
    /// Whether no exchange has waited in vain since the last one that was merged.
    is_line_sound: bool,
}

#[derive(Clone, Copy, Debug)]
struct Silences {
    /// In a row.
    count: u32,
    passed_over_until: Time,
}

impl SilentPartners {
    /// An own exchange was merged.
    pub(super) fn on_merged(&mut self, partner: PeerId) {
        self.is_line_sound = true;
        self.partners.remove(&partner);
    }

    /// A partner that had accepted was waited for so long in vain. Returns whether that is held against it alone.
    pub(super) fn on_silence(&mut self, now: Time, partner: PeerId, waited: Duration) -> bool {
        if !std::mem::take(&mut self.is_line_sound) {
            return false;
        }
        if self.partners.len() >= SILENT_PARTNERS_MAX && !self.partners.contains_key(&partner) {
            let soonest = self.partners.iter().min_by_key(|(_, silences)| silences.passed_over_until);
            soonest.map(|(peer, _)| *peer).map(|peer| self.partners.remove(&peer));
        }
        let count = 1 + self.partners.get(&partner).map_or(0, |silences| silences.count);
        let passed_over_until = now + waited.saturating_mul(SILENT_PASSED_OVER_FACTOR);
        self.partners.insert(partner, Silences { count, passed_over_until });
        true
    }

    /// Leaves out who is passed over, unless that is everybody.
    pub(super) fn pass_over(&self, now: Time, partners: &mut Vec<(PeerId, Holding)>) {
        let is_passed_over = |peer: &PeerId| self.partners.get(peer).is_some_and(|it| now < it.passed_over_until);
        if !partners.iter().all(|(peer, _)| is_passed_over(peer)) {
            partners.retain(|(peer, _)| !is_passed_over(peer));
        }
    }

    /// How many times as long as others this partner is given.
    pub(super) fn patience(&self, partner: PeerId) -> u32 {
        1 << self.partners.get(&partner).map_or(0, |silences| silences.count.min(EXCHANGE_DOUBLINGS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peer;
    use crate::time::second;

    const WAITED: Duration = Duration::from_secs(3);

    fn asked(silent: &SilentPartners, now: Time, numbers: &[u8]) -> Vec<PeerId> {
        let mut partners = numbers.iter().map(|number| (peer(*number), Holding::ALL)).collect();
        silent.pass_over(now, &mut partners);
        partners.into_iter().map(|(peer, _)| peer).collect()
    }

    #[test]
    fn who_is_silent_while_others_answer_is_passed_over_for_a_while_and_then_given_twice_as_long() {
        let mut silent = SilentPartners::default();
        silent.on_merged(peer(2));
        assert!(silent.on_silence(second(10), peer(1), WAITED));
        assert_eq!(asked(&silent, second(11), &[1, 2]), [peer(2)]);
        assert_eq!(asked(&silent, second(11), &[1]), [peer(1)], "there is nobody else");
        assert_eq!(asked(&silent, second(100), &[1, 2]), [peer(1), peer(2)]);
        assert_eq!([1, 2].map(|number| silent.patience(peer(number))), [2, 1]);
        silent.on_merged(peer(1));
        assert_eq!(silent.patience(peer(1)), 1, "it was merely slow");
    }

    #[test]
    fn the_second_silence_in_a_row_is_held_against_nobody() {
        let mut silent = SilentPartners::default();
        assert!(!silent.on_silence(second(10), peer(1), WAITED), "nothing is known of the line");
        silent.on_merged(peer(2));
        assert!(silent.on_silence(second(20), peer(1), WAITED));
        assert!(!silent.on_silence(second(30), peer(2), WAITED), "the line may be to blame");
        assert_eq!(asked(&silent, second(31), &[1, 2]), [peer(2)]);
    }

    #[test]
    fn those_that_are_remembered_are_few_however_many_are_silent() {
        let mut silent = SilentPartners::default();
        for number in 0..=SILENT_PARTNERS_MAX as u64 {
            let mut key = [9; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            silent.on_merged(peer(1));
            assert!(silent.on_silence(second(number), PeerId::from_public_key(key), WAITED));
        }
        assert_eq!(silent.partners.len(), SILENT_PARTNERS_MAX);
    }
}
