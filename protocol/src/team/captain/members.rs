//! Helpers that exchange their layers with the swarm by themselves: what a captain tells them of it.

use std::collections::BTreeMap;

use super::Captain;
use crate::bounds::OUTDATED_FOR;
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
    /// Layers that have begun from an older copy than what was exchanged, and when a helper was told that it has them, to copy them
    /// from the swarm; `None`: nobody has been told.
    outdated: BTreeMap<u32, Option<Time>>,
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

    /// Whoever was away may be back, and whoever copies layers has them.
    pub(super) fn on_time(&mut self, now: Time) {
        self.apart_until = self.apart_until.filter(|until| now < *until);
        self.outdated.retain(|_, told| told.is_none_or(|told| now < told + OUTDATED_FOR));
    }

    pub(super) fn are_wanted(&self) -> bool {
        self.membership.is_some()
    }

    /// What a batch tells each helper of the cut.
    fn begin(&mut self, now: Time, cut: &Cut) -> Vec<(PeerId, Option<Membership>)> {
        self.have_exchanged = self.membership.is_some();
        if !self.have_exchanged {
            self.take_outdated_over();
        }
        let own: Vec<LayerRange> = cut.of_captain().map(|stage| cut.stages[stage].layers).collect();
        let is_own = own.iter().flat_map(|layers| layers.numbers()).fold(false, |any, layer| {
            let is_outdated = self.outdated.remove(&layer).is_some();
            any || is_outdated
        });
        self.own_outdated += u64::from(is_own);
        let told = cut.of_helpers().map(|(_, helper, stage)| {
            let is_outdated = stage.layers.numbers().any(|layer| self.outdated.get(&layer) == Some(&None));
            (helper, self.membership.clone().map(|membership| Membership { is_outdated, ..membership }))
        });
        let told = told.collect();
        self.outdated.values_mut().for_each(|at| *at = at.or(Some(now)));
        told
    }

    /// The captain exchanges all layers itself: what is outdated of them is for it to copy.
    fn take_outdated_over(&mut self) {
        self.own_outdated += u64::from(!self.outdated.is_empty());
        self.outdated.clear();
    }

    /// A helper that was told to copy its layers may not have done so.
    fn forget_told(&mut self) {
        self.outdated.values_mut().for_each(|told| *told = None);
    }
}

impl Captain {
    pub(super) fn on_membership_decided(&mut self, epoch: u64, membership: Option<Membership>) {
        if epoch == self.epoch {
            self.members.membership = membership;
            if !self.members.are_wanted() {
                // No batch may follow that would say so.
                self.members.take_outdated_over();
            }
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
        self.members.forget_told();
    }

    /// Layers begin from a copy that is older than what their helper had.
    pub(super) fn on_outdated(&mut self, layers: LayerRange) {
        if self.members.have_exchanged {
            self.members.outdated.extend(layers.numbers().map(|layer| (layer, None)));
        }
    }

    /// The helpers of the cut, each with what a batch tells it of its membership.
    pub(super) fn helpers_and_memberships(&mut self, now: Time, kind: BatchKind) -> Vec<(PeerId, Option<Membership>)> {
        let Some(cut) = &self.cut else { return Vec::new() };
        match kind {
            BatchKind::Training => self.members.begin(now, cut),
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
        let outdated = outdated.iter().map(|layer| (*layer, None)).collect();
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

    fn told(members: &mut Members, now: Time) -> Vec<Option<bool>> {
        let told = members.begin(now, &cut());
        told.into_iter().map(|(_, membership)| membership.map(|membership| membership.is_outdated)).collect()
    }

    #[test]
    fn whoever_has_older_layers_is_told_once() {
        let mut of_helper = members(&[3]);
        assert_eq!(told(&mut of_helper, Time::ZERO), [Some(false), Some(true)]);
        assert_eq!((told(&mut of_helper, Time::ZERO), of_helper.own_outdated), (vec![Some(false); 2], 0));
        let mut own = members(&[4]);
        assert_eq!((told(&mut own, Time::ZERO), own.own_outdated), (vec![Some(false); 2], 1), "the captain has them");
        assert_eq!((told(&mut own, Time::ZERO), own.own_outdated), (vec![Some(false); 2], 1));
        let mut of_all = Members { membership: None, ..members(&[3]) };
        assert_eq!((told(&mut of_all, Time::ZERO), of_all.own_outdated), (vec![None; 2], 1), "it exchanges all layers");
    }

    /// A copy takes a while: who has the layers next is told as well.
    #[test]
    fn layers_are_outdated_until_there_was_time_to_copy_them() {
        let mut copying = members(&[3]);
        told(&mut copying, Time::ZERO);
        copying.forget_told();
        copying.on_time(Time::ZERO + OUTDATED_FOR);
        assert_eq!(told(&mut copying, Time::ZERO), [Some(false), Some(true)], "a new cut before it was done");
        copying.take_outdated_over();
        assert_eq!((copying.own_outdated, copying.outdated.len()), (1, 0), "the run ended before it was done");
        let mut copied = members(&[3]);
        told(&mut copied, Time::ZERO);
        copied.on_time(Time::ZERO + OUTDATED_FOR);
        copied.forget_told();
        assert_eq!(told(&mut copied, Time::ZERO + OUTDATED_FOR), [Some(false); 2]);
    }
}
