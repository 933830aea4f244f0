//! States on their way between the owner and the helpers, at the owner's wish.

use std::collections::BTreeMap;

use super::roster::Task;
use super::{Captain, CaptainEffect, Phase};
use crate::Payload;
use crate::peer::PeerId;
use crate::team::frame::{StateHeader, StateKind};
use crate::team::message::{LayerRange, TeamMessage};
use crate::team::notice::WriteOutcome;
use crate::time::Time;

/// States of all helpers are copied to the owner.
#[derive(Debug)]
pub(super) struct Copying {
    request: u64,
    kind: StateKind,
    awaits: BTreeMap<PeerId, LayerRange>,
    since: Time,
}

impl Copying {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.awaits.keys().map(|helper| (*helper, Task::Copy, self.since)).collect()
    }
}

/// The owner's bytes are written into all helpers.
#[derive(Debug)]
pub(super) struct Writing {
    request: u64,
    awaits: BTreeMap<PeerId, LayerRange>,
    /// That were lost before they had written.
    lost: Vec<PeerId>,
    is_kept: bool,
    since: Time,
}

impl Writing {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.awaits.keys().map(|helper| (*helper, Task::Write, self.since)).collect()
    }

    pub(super) fn lose(&mut self, helper: PeerId) {
        self.awaits.remove(&helper);
        self.lost.push(helper);
    }
}

impl Captain {
    /// Stages of helpers with their layers.
    fn stages_of_helpers(&self) -> BTreeMap<PeerId, LayerRange> {
        let stages = self.cut.iter().flat_map(|cut| cut.of_helpers());
        stages.map(|(_, helper, stage)| (helper, stage.layers)).collect()
    }

    pub(super) fn begin_copy(&mut self, now: Time, kind: StateKind) {
        let (request, awaits) = (self.number(), self.stages_of_helpers());
        for helper in awaits.keys() {
            self.send(*helper, TeamMessage::Copy { epoch: self.epoch, request, kind });
        }
        self.phase = Phase::Copying(Copying { request, kind, awaits, since: now });
        self.end_copy();
    }

    /// A state has come: of a copy that the owner wants, of layers that move, or of a step.
    pub(super) fn on_state(&mut self, now: Time, helper: PeerId, header: StateHeader, payload: Payload) {
        let Some(layers) = self.roster.get(helper).and_then(|known| known.held).map(|held| held.layers) else {
            return self.counts.stale += 1;
        };
        let bytes_max = u64::from(layers.len()).saturating_mul(self.config.state_bytes_per_layer);
        let is_sound = header.bytes == payload.len() as u64 && header.bytes <= bytes_max;
        if !is_sound || !matches!(header.kind, StateKind::Training | StateKind::Parameters) {
            return self.accuse(now, helper);
        }
        let is_training = header.kind == StateKind::Training;
        if is_training && self.on_saved(now, helper, header, &payload) {
            return;
        }
        if header.epoch != self.epoch {
            return self.counts.stale += 1;
        }
        if is_training && self.on_copy_after_step(now, helper, header.request) {
            self.keep(layers, header, payload);
            return self.end_step(now);
        }
        let Phase::Copying(copying) = &mut self.phase else { return self.counts.stale += 1 };
        let is_wanted = (copying.request, copying.kind) == (header.request, header.kind);
        if !is_wanted || copying.awaits.remove(&helper).is_none() {
            return self.counts.stale += 1;
        }
        let since = copying.since;
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Copy, now - since);
        }
        self.keep(layers, header, payload);
        self.end_copy();
    }

    /// Hands the owner a state. Of which revision it is, the captain knows better than its sender.
    pub(super) fn keep(&mut self, layers: LayerRange, header: StateHeader, payload: Payload) {
        let kind = header.kind;
        let revision = header.revision.min(self.revision);
        if kind == StateKind::Training {
            layers.numbers().for_each(|layer| self.kept[layer as usize] = revision);
        }
        self.effects.push_back(CaptainEffect::Keep { layers, kind, revision, payload });
    }

    fn end_copy(&mut self) {
        let Phase::Copying(copying) = &self.phase else { return };
        if copying.awaits.is_empty() {
            self.phase = Phase::Ready;
            self.effects.push_back(CaptainEffect::CopyEnded { is_complete: true });
        }
    }

    pub(super) fn begin_write(&mut self, now: Time, kind: StateKind, parts: Vec<Payload>, epoch: u64, is_kept: bool) {
        let helpers: Vec<PeerId> =
            self.cut.iter().flat_map(|cut| cut.of_helpers()).map(|(_, helper, _)| helper).collect();
        let writable = matches!(kind, StateKind::Training | StateKind::Parameters | StateKind::Correction);
        if epoch != self.epoch || parts.len() != helpers.len() || !writable {
            return self.effects.push_back(CaptainEffect::WriteEnded { outcome: WriteOutcome::Nothing });
        }
        self.revision += 1;
        let (request, revision) = (self.number(), self.revision);
        for (helper, payload) in helpers.into_iter().zip(parts) {
            let header = StateHeader { epoch, request, kind, revision, bytes: payload.len() as u64 };
            self.effects.push_back(CaptainEffect::SendState { helper, header, payload });
        }
        let awaits = self.stages_of_helpers();
        self.phase = Phase::Writing(Writing { request, awaits, lost: Vec::new(), is_kept, since: now });
        self.end_write(now);
    }

    pub(super) fn on_written(&mut self, now: Time, helper: PeerId, epoch: u64, request: u64) {
        let is_this = epoch == self.epoch;
        let Phase::Writing(writing) = &mut self.phase else { return self.counts.stale += 1 };
        if !is_this || writing.request != request || writing.awaits.remove(&helper).is_none() {
            return self.counts.stale += 1;
        }
        let since = writing.since;
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Write, now - since);
            if let Some(held) = &mut known.held {
                held.revision = self.revision;
            }
        }
        self.end_write(now);
    }

    pub(super) fn end_write(&mut self, now: Time) {
        let Phase::Writing(writing) = &mut self.phase else { return };
        if !writing.awaits.is_empty() {
            return;
        }
        let (lost, is_kept) = (std::mem::take(&mut writing.lost), writing.is_kept);
        let of_helpers = self.stages_of_helpers();
        let is_own = |layer: u32| !of_helpers.values().any(|layers| layers.numbers().contains(&layer));
        for layer in 0..self.config.model.layers {
            if is_own(layer) || is_kept {
                self.kept[layer as usize] = self.revision;
            }
        }
        self.phase = Phase::Ready;
        let outcome = if lost.is_empty() { WriteOutcome::Complete } else { WriteOutcome::Partial };
        self.effects.push_back(CaptainEffect::WriteEnded { outcome });
        lost.into_iter().for_each(|helper| self.wait_for(now, helper));
    }
}
