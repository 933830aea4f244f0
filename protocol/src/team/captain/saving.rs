//! States of layers that are about to move, or whose helper leaves, are copied to the owner before a new cut.

use std::collections::BTreeMap;

use super::forming::Waiting;
use super::roster::Task;
use super::states::InParts;
use super::{Captain, Phase};
use crate::Payload;
use crate::peer::PeerId;
use crate::team::cut::Cut;
use crate::team::frame::{StateHeader, StateKind};
use crate::team::message::{HeldLayers, TeamMessage};
use crate::team::notice::TeamNotice;
use crate::time::Time;

/// States of layers that are about to move are copied to the owner.
#[derive(Debug)]
pub(super) struct Saving {
    /// What comes then; none where somebody leaves whose layers fit nowhere else.
    pub(super) cut: Option<Cut>,
    /// Of whom, by request.
    copies: BTreeMap<u64, Giving>,
    /// Parts that the owner reads, by the number of the order, with their requests. It may be long busy with something else, so that
    /// a helper is asked for the next part when it has read the one before.
    read: BTreeMap<u64, (u64, Giving)>,
}

/// A helper, what it holds, and how far its state has come.
type Giving = (PeerId, HeldLayers, InParts);

impl Saving {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.copies.values().map(|(helper, _, parts)| (*helper, Task::Copy, parts.since)).collect()
    }

    /// Whether a helper gives its state, or has a stage of the cut that comes.
    pub(super) fn concerns(&self, helper: PeerId) -> bool {
        let mut givers = self.copies.values().chain(self.read.values().map(|(_, giving)| giving));
        self.cut.as_ref().is_some_and(|cut| cut.has(helper)) || givers.any(|(giver, ..)| *giver == helper)
    }
}

impl Captain {
    /// The layers of who leaves fit nowhere else: what they are is copied, then their helper is let go, and the team waits.
    pub(super) fn part_with_leaving(&mut self, now: Time) {
        let leaving = self.roster.leaving();
        let mut moving = self.roster.held_layers();
        moving.retain(|(helper, _)| leaving.contains(helper));
        leaving.into_iter().for_each(|helper| self.notice(TeamNotice::HelperLeaves { helper }));
        self.save(now, moving, None);
    }

    pub(super) fn save(&mut self, now: Time, moving: Vec<(PeerId, HeldLayers)>, cut: Option<Cut>) {
        let mut copies = BTreeMap::new();
        for (helper, held) in moving {
            // Exchanges change what a member has without a new revision; others may have had layers of an earlier cut since.
            let exchanges = self.members.are_wanted() && held.epoch == self.epoch;
            if exchanges || !held.layers.numbers().all(|layer| self.kept[layer as usize] >= held.revision) {
                let (request, parts) = (self.number(), self.in_parts(held.layers, now));
                copies.insert(request, (helper, held, parts));
                self.save_part(helper, request, &held, &parts);
            }
        }
        self.phase = Phase::Saving(Saving { cut, copies, read: BTreeMap::new() });
        self.end_saving(now);
    }

    fn save_part(&mut self, helper: PeerId, request: u64, held: &HeldLayers, parts: &InParts) {
        let (epoch, kind) = (held.epoch, StateKind::Training);
        self.send(helper, TeamMessage::Copy { epoch, request, kind, layers: parts.part, stays_member: false });
    }

    /// The state of a helper whose layers move has come; whether it is one that was asked for.
    pub(super) fn on_saved(&mut self, now: Time, helper: PeerId, header: StateHeader, payload: &Payload) -> bool {
        let Phase::Saving(saving) = &mut self.phase else { return false };
        let Some((giver, held, parts)) = saving.copies.get(&header.request).copied() else { return false };
        if giver != helper || header.epoch != held.epoch || header.layers != parts.part {
            return false;
        }
        saving.copies.remove(&header.request);
        saving.read.insert(self.next_number, (header.request, (helper, held, parts)));
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Copy, now - parts.since);
        }
        self.keep(helper, header.layers, header, payload.clone());
        true
    }

    /// The owner has read a part of a state.
    pub(super) fn save_next_part(&mut self, now: Time, number: u64) {
        let Phase::Saving(saving) = &mut self.phase else { return };
        let Some((request, (helper, held, parts))) = saving.read.remove(&number) else { return };
        if let Some(next) = parts.next(now) {
            saving.copies.insert(request, (helper, held, next));
            self.save_part(helper, request, &held, &next);
        }
    }

    pub(super) fn end_saving(&mut self, now: Time) {
        let Phase::Saving(saving) = &self.phase else { return };
        if saving.copies.is_empty() && self.checking.is_empty() {
            match saving.cut.clone() {
                Some(cut) => self.load(now, cut),
                None => self.release_leaving(now),
            }
        }
    }

    /// What leaving helpers had is kept.
    fn release_leaving(&mut self, now: Time) {
        for helper in self.roster.leaving() {
            if let Some(known) = self.roster.get_mut(helper) {
                (known.is_assigned, known.held) = (false, None);
            }
            self.send(helper, TeamMessage::Release { epoch: self.epoch });
        }
        self.phase = Phase::Waiting(Waiting::gathering(now));
        self.seek_cut(now);
    }
}
