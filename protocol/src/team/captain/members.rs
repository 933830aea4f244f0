//! Helpers that exchange their layers with the swarm by themselves: what a captain tells them of it.

use std::collections::BTreeSet;

use super::Captain;
use crate::peer::PeerId;
use crate::team::bounds::APART_FOR;
use crate::team::cut::Cut;
use crate::team::layers::LayerRange;
use crate::team::message::{BatchKind, Membership};
use crate::team::notice::TeamNotice;
use crate::time::Time;

/// See the file's documentation.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// How helpers of this cut come to the swarm, if they are to.
    membership: Option<Membership>,
    /// Whether helpers were members in the last batch.
    have_exchanged: bool,
    /// Layers that have begun from an older copy than what was exchanged, of which nobody has been told yet who exchanges them now.
    outdated: BTreeSet<u32>,
    /// How often the captain has come by such layers, to exchange them itself.
    pub(super) own_outdated: u64,
    /// Where a helper of this cut has reached nobody of the swarm: until when no helper is a member.
    apart_until: Option<Time>,
}

impl Members {
    /// Whether a helper of this cut has reached nobody of the swarm lately.
    pub(super) fn is_apart(&self) -> bool {
        self.apart_until.is_some()
    }

    /// Whoever was away may be back.
    pub(super) fn on_time(&mut self, now: Time) {
        self.apart_until = self.apart_until.filter(|until| now < *until);
    }

    pub(super) fn are_wanted(&self) -> bool {
        self.membership.is_some()
    }

    /// What a batch tells each helper of the cut.
    fn begin(&mut self, cut: &Cut) -> Vec<(PeerId, Option<Membership>)> {
        let outdated = std::mem::take(&mut self.outdated);
        let is_outdated = |layers: LayerRange| layers.numbers().any(|layer| outdated.contains(&layer));
        let of_helper =
            |membership: &Membership, layers| Membership { is_outdated: is_outdated(layers), ..membership.clone() };
        let told = cut.of_helpers().map(|(_, helper, stage)| {
            (helper, self.membership.as_ref().map(|membership| of_helper(membership, stage.layers)))
        });
        let told = told.collect();
        self.have_exchanged = self.membership.is_some();
        let is_own = match self.have_exchanged {
            true => cut.of_captain().any(|stage| is_outdated(cut.stages[stage].layers)),
            false => !outdated.is_empty(),
        };
        self.own_outdated += u64::from(is_own);
        told
    }
}

impl Captain {
    pub(super) fn on_membership_decided(&mut self, epoch: u64, membership: Option<Membership>) {
        if epoch == self.epoch {
            self.members.membership = membership;
        }
    }

    /// A helper that is to be a member has reached nobody.
    pub(super) fn on_apart(&mut self, now: Time, helper: PeerId, epoch: u64) {
        if epoch != self.epoch || !self.members.are_wanted() {
            return self.counts.stale += 1;
        }
        self.members.apart_until = Some(now + APART_FOR);
        self.notice(TeamNotice::HelperApart { helper });
    }

    /// A new cut: nobody is a member before it is decided.
    pub(super) fn end_memberships(&mut self) {
        (self.members.membership, self.members.apart_until) = (None, None);
    }

    /// Layers begin from a copy that is older than what their helper had.
    pub(super) fn on_outdated(&mut self, layers: LayerRange) {
        if self.members.have_exchanged {
            self.members.outdated.extend(layers.numbers());
        }
    }

    /// The helpers of the cut, each with what a batch tells it of its membership.
    pub(super) fn helpers_and_memberships(&mut self, kind: BatchKind) -> Vec<(PeerId, Option<Membership>)> {
        let Some(cut) = &self.cut else { return Vec::new() };
        match kind {
            BatchKind::Training => self.members.begin(cut),
            BatchKind::Evaluation => cut.of_helpers().map(|(_, helper, _)| (helper, None)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::cut::CutStage;

    fn helper(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    /// The captain has the ends and layer 4, helper 1 layers 0 and 1, helper 2 layers 2 and 3.
    fn cut() -> Cut {
        let stage = |helper, first, end| CutStage {
            helper,
            layers: LayerRange { first, end },
            embeds: end == 0,
            predicts: end == 5,
            in_flight: 1,
        };
        let stages =
            vec![stage(None, 0, 0), stage(Some(helper(1)), 0, 2), stage(Some(helper(2)), 2, 4), stage(None, 4, 5)];
        Cut { stages, tokens_per_second: 1.0 }
    }

    fn members(outdated: &[u32]) -> Members {
        let membership = Membership { ticket: String::new(), progress: 1.0, is_outdated: false };
        let outdated = outdated.iter().copied().collect();
        Members { membership: Some(membership), outdated, ..Members::default() }
    }

    #[test]
    fn helpers_are_members_again_some_time_after_one_has_reached_nobody() {
        let mut members = Members { apart_until: Some(Time::ZERO + APART_FOR), ..members(&[]) };
        members.on_time(Time::ZERO + APART_FOR / 2);
        assert!(members.is_apart());
        members.on_time(Time::ZERO + APART_FOR);
        assert!(!members.is_apart());
    }

    #[test]
    fn whoever_has_older_layers_is_told_once() {
        let told = |members: &mut Members| -> Vec<Option<bool>> {
            let told = members.begin(&cut());
            told.into_iter().map(|(_, membership)| membership.map(|membership| membership.is_outdated)).collect()
        };
        let mut of_helper = members(&[3]);
        assert_eq!(told(&mut of_helper), [Some(false), Some(true)]);
        assert_eq!((told(&mut of_helper), of_helper.own_outdated), (vec![Some(false); 2], 0));
        let mut own = members(&[4]);
        assert_eq!((told(&mut own), own.own_outdated), (vec![Some(false); 2], 1), "the captain has them now");
        assert_eq!((told(&mut own), own.own_outdated), (vec![Some(false); 2], 1));
        let mut of_all = Members { membership: None, ..members(&[3]) };
        assert_eq!((told(&mut of_all), of_all.own_outdated), (vec![None; 2], 1), "it exchanges all layers");
    }
}
