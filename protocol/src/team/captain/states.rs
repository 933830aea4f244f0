//! States on their way between the owner and the helpers: at the owner's wish, after steps and before a new cut. What a helper sends
//! counts once the owner has read it.

use std::collections::BTreeMap;

use super::roster::Task;
use super::{Captain, CaptainEffect, Packet, Phase};
use crate::Payload;
use crate::peer::PeerId;
use crate::team::frame::{StateHeader, StateKind};
use crate::team::layers::LayerRange;
use crate::team::message::TeamMessage;
use crate::team::notice::{DropReason, WriteOutcome};
use crate::time::Time;

/// States of all helpers are copied to the owner.
#[derive(Debug)]
pub(super) struct Copying {
    request: u64,
    kind: StateKind,
    awaits: BTreeMap<PeerId, InParts>,
}

impl Copying {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.awaits.iter().map(|(helper, parts)| (*helper, Task::Copy, parts.since)).collect()
    }
}

/// A state that comes one part after the other, so that neither side has all of it in memory twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct InParts {
    /// What is on its way.
    pub(super) part: LayerRange,
    /// The layer behind the last one.
    end: u32,
    /// Since when that part is waited for.
    pub(super) since: Time,
}

impl InParts {
    /// Of so many layers at a time.
    fn first(layers: LayerRange, at_once: u32, since: Time) -> InParts {
        let part = LayerRange { first: layers.first, end: layers.end.min(layers.first.saturating_add(at_once)) };
        InParts { part, end: layers.end, since }
    }

    /// What follows it; `None` where it is the last one.
    pub(super) fn next(self, now: Time) -> Option<InParts> {
        let rest = LayerRange { first: self.part.end, end: self.end };
        (!rest.is_empty()).then(|| InParts::first(rest, self.part.len(), now))
    }
}

/// A state of a helper that is at the owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    helper: PeerId,
    layers: LayerRange,
    kind: StateKind,
    revision: u64,
}

/// The owner's bytes are written into all helpers.
#[derive(Debug)]
pub(super) struct Writing {
    request: u64,
    kind: StateKind,
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
        let awaits: BTreeMap<_, _> =
            awaits.into_iter().map(|(helper, layers)| (helper, self.in_parts(layers, now))).collect();
        for (helper, parts) in &awaits {
            self.ask_for_part(*helper, request, kind, parts);
        }
        self.phase = Phase::Copying(Copying { request, kind, awaits });
        self.end_copy();
    }

    /// A state of these layers: what all weights take is large and goes a layer at a time, adapters go together.
    pub(super) fn in_parts(&self, layers: LayerRange, now: Time) -> InParts {
        InParts::first(layers, if self.config.copies_after_steps { layers.len() } else { 1 }, now)
    }

    fn ask_for_part(&mut self, helper: PeerId, request: u64, kind: StateKind, parts: &InParts) {
        let (epoch, layers, stays_member) = (self.epoch, parts.part, self.members.are_wanted());
        self.send(helper, TeamMessage::Copy { epoch, request, kind, layers, stays_member });
    }

    /// A state has come: of a copy that the owner wants, of layers that move, or of a step.
    pub(super) fn on_state(&mut self, now: Time, helper: PeerId, header: StateHeader, payload: Payload) {
        let Some(held) = self.roster.get(helper).and_then(|known| known.held).map(|held| held.layers) else {
            return self.counts.stale += 1;
        };
        let layers = header.layers;
        if !held.contains(layers) {
            return self.accuse(now, helper);
        }
        let bytes_max = u64::from(layers.len()).saturating_mul(self.config.state_bytes_per_layer);
        if header.bytes != payload.len() as u64 || !matches!(header.kind, StateKind::Training | StateKind::Parameters) {
            return self.accuse(now, helper);
        }
        if header.bytes > bytes_max {
            let what = format!("it has {} bytes, where {bytes_max} are the most", header.bytes);
            return self.refuse_state(now, helper, layers, &what);
        }
        let is_training = header.kind == StateKind::Training;
        if is_training && self.on_saved(now, helper, header, &payload) {
            return;
        }
        if header.epoch != self.epoch {
            return self.counts.stale += 1;
        }
        if is_training && layers == held && self.on_copy_after_step(now, helper, header.request) {
            return self.keep(helper, layers, header, payload);
        }
        let Phase::Copying(copying) = &mut self.phase else { return self.counts.stale += 1 };
        let (request, kind) = (copying.request, copying.kind);
        let wanted = copying.awaits.get(&helper).copied().filter(|parts| parts.part == layers);
        let Some(parts) = wanted.filter(|_| (request, kind) == (header.request, header.kind)) else {
            return self.counts.stale += 1;
        };
        copying.awaits.remove(&helper);
        let next = parts.next(now);
        copying.awaits.extend(next.map(|next| (helper, next)));
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Copy, now - parts.since);
        }
        if let Some(next) = next {
            self.ask_for_part(helper, request, kind, &next);
        }
        self.keep(helper, layers, header, payload);
    }

    /// Hands the owner a state. Of which revision it is, the captain knows better than its sender.
    pub(super) fn keep(&mut self, helper: PeerId, layers: LayerRange, header: StateHeader, payload: Payload) {
        let (number, kind, revision) = (self.number(), header.kind, header.revision.min(self.revision));
        self.checking.insert(number, Checked { helper, layers, kind, revision });
        self.effects.push_back(CaptainEffect::Keep { number, helper, layers, kind, revision, payload });
    }

    /// The owner has read a state, or could not.
    pub(super) fn on_kept(&mut self, now: Time, number: u64, result: Result<(), String>) {
        let Some(checked) = self.checking.remove(&number) else { return self.counts.stale += 1 };
        let Checked { helper, layers, kind, revision } = checked;
        match result {
            Ok(()) => {
                for layer in layers.numbers().map(|layer| layer as usize) {
                    self.kept_parameters[layer] = revision;
                    if kind == StateKind::Training {
                        self.kept[layer] = revision;
                    }
                }
                self.save_next_part(now, number);
            }
            Err(what) => {
                if let Phase::Computing(batch) = &mut self.phase {
                    self.counts.steps_missed += u64::from(batch.is_copied_in_vain(helper));
                }
                self.refuse_state(now, helper, layers, &what);
            }
        }
        self.end_saving(now);
        self.end_copy();
        self.end_step(now);
    }

    /// A state that cannot be read: whose it is is let go for good, and its layers go on from the owner's copy.
    fn refuse_state(&mut self, now: Time, helper: PeerId, layers: LayerRange, what: &str) {
        self.counts.misbehaved += 1;
        // Parts of one state come one after the other, the last ones while the first is read.
        if self.roster.is_barred(helper) {
            return;
        }
        let reason = format!("its state of layers {}-{} cannot be used: {what}", layers.first, layers.end - 1);
        self.dismiss(now, helper, DropReason::StateUnfit, reason);
    }

    fn end_copy(&mut self) {
        let Phase::Copying(copying) = &self.phase else { return };
        if copying.awaits.is_empty() && self.checking.is_empty() {
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
        let awaits = self.stages_of_helpers();
        for (helper, payload) in helpers.into_iter().zip(parts) {
            let (layers, bytes) = (awaits[&helper], payload.len() as u64);
            let header = StateHeader { epoch, request, kind, layers, revision, bytes };
            self.effects.push_back(CaptainEffect::Send { helper, packet: Packet::State(header, payload) });
        }
        self.phase = Phase::Writing(Writing { request, kind, awaits, lost: Vec::new(), is_kept, since: now });
        self.end_write(now);
    }

    pub(super) fn on_written(&mut self, now: Time, helper: PeerId, epoch: u64, request: u64) {
        let is_this = epoch == self.epoch;
        if matches!(self.phase, Phase::Loading(_)) {
            return self.on_part_taken(now, helper, epoch, request);
        }
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
        let (lost, is_kept, kind) = (std::mem::take(&mut writing.lost), writing.is_kept, writing.kind);
        let of_helpers = self.stages_of_helpers();
        let is_own = |layer: u32| !of_helpers.values().any(|layers| layers.numbers().contains(&layer));
        for layer in 0..self.config.model.layers {
            let (is_kept, place) = (is_own(layer) || is_kept, layer as usize);
            if is_kept {
                self.kept[place] = self.revision;
            }
            // What was written is what is kept, but for corrections.
            if is_kept || kind != StateKind::Correction {
                self.kept_parameters[place] = self.revision;
            }
        }
        self.phase = Phase::Ready;
        let outcome = if lost.is_empty() { WriteOutcome::Complete } else { WriteOutcome::Partial };
        self.effects.push_back(CaptainEffect::WriteEnded { outcome });
        lost.into_iter().for_each(|helper| self.wait_for(now, helper));
    }
}
