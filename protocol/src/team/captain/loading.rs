//! The stages of a new cut are loaded: what each begins with, what that costs of what was learned, and who is ready.

use std::collections::{BTreeMap, BTreeSet};

use super::forming::Waiting;
use super::roster::Task;
use super::states::InParts;
use super::{Captain, CaptainEffect, Packet, Phase};
use crate::Payload;
use crate::peer::PeerId;
use crate::team::bounds::WAITING_NOTICE_PERIOD;
use crate::team::cut::{self, Cut};
use crate::team::frame::{StateHeader, StateKind};
use crate::team::layers::LayerRange;
use crate::team::message::{Assign, HeldLayers, TeamMessage};
use crate::team::notice::TeamNotice;
use crate::time::Time;

/// Stages are loaded.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) cut: Cut,
    /// Helpers that are not ready.
    awaits: BTreeSet<PeerId>,
    /// Whether the captain's own stages are not ready.
    awaits_own: bool,
    /// States that the owner reads out, by request.
    reads: BTreeMap<u64, (PeerId, StateKind, LayerRange)>,
    /// What helpers are given of the states that they begin with, by the request of the part on its way.
    gives: BTreeMap<PeerId, (u64, InParts)>,
    since: Time,
}

impl Loading {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.awaits.iter().map(|helper| (*helper, Task::Load, self.since)).collect()
    }
}

impl Captain {
    /// Orders all stages of a cut.
    pub(super) fn load(&mut self, now: Time, cut: Cut) {
        self.epoch = self.number();
        self.end_memberships();
        for helper in self.roster.offering() {
            if let Some(known) = self.roster.get_mut(helper)
                && !cut.has(helper)
                && (known.is_assigned || known.held.is_some())
            {
                (known.is_assigned, known.held) = (false, None);
                self.send(helper, TeamMessage::Release { epoch: self.epoch });
            }
        }
        let (mut reads, mut gives) = (BTreeMap::new(), BTreeMap::new());
        for (number, helper, stage) in cut.of_helpers() {
            let keeps_state = self.keeps_state(helper, stage.layers);
            self.assign(helper, &cut, number, keeps_state);
            if !keeps_state {
                let (request, parts) = (self.number(), self.in_parts(stage.layers, now));
                let (layers, kind) = (parts.part, StateKind::Training);
                reads.insert(request, (helper, kind, layers));
                gives.insert(helper, (request, parts));
                self.effects.push_back(CaptainEffect::ReadOut { request, layers, kind });
            }
        }
        let own: Vec<LayerRange> = cut.of_captain().map(|stage| cut.stages[stage].layers).collect();
        own.into_iter().for_each(|layers| self.go_back(layers));
        self.effects.push_back(CaptainEffect::Load { epoch: self.epoch, cut: cut.clone() });
        let awaits = cut.of_helpers().map(|(_, helper, _)| helper).collect();
        self.phase = Phase::Loading(Loading { cut, awaits, awaits_own: true, reads, gives, since: now });
    }

    /// Whether a helper goes on with what it holds of these layers, which is no older than the owner's copy.
    fn keeps_state(&mut self, helper: PeerId, layers: LayerRange) -> bool {
        let kept = layers.numbers().map(|layer| self.kept[layer as usize]).min().unwrap_or(0);
        let held = self.roster.get(helper).and_then(|known| known.held);
        let held = held.filter(|held| held.layers == layers && held.revision >= kept);
        match held {
            Some(held) => {
                self.count_lost(layers, held.revision, held.revision);
                if let Some(known) = self.roster.get_mut(helper) {
                    known.held = Some(HeldLayers { epoch: self.epoch, revision: self.revision, layers });
                }
            }
            None => {
                self.go_back(layers);
                if let Some(known) = self.roster.get_mut(helper) {
                    known.held = None;
                    known.forget_work(&self.config.timeouts);
                }
            }
        }
        held.is_some()
    }

    /// These layers go on from the owner's copy, which from now on counts as that of now.
    fn go_back(&mut self, layers: LayerRange) {
        let kept = |layer: u32| (self.kept_parameters[layer as usize], self.kept[layer as usize]);
        let of_layers: Vec<(u32, (u64, u64))> = layers.numbers().map(|layer| (layer, kept(layer))).collect();
        for alike in of_layers.chunk_by(|(_, kept), (_, next)| kept == next) {
            let (first, (parameters, moments)) = alike[0];
            self.count_lost(LayerRange { first, end: first + alike.len() as u32 }, parameters, moments);
        }
        for layer in layers.numbers().map(|layer| layer as usize) {
            (self.kept[layer], self.kept_parameters[layer]) = (self.revision, self.revision);
        }
    }

    /// Layers go on with parameters and moments of these revisions.
    fn count_lost(&mut self, layers: LayerRange, parameters: u64, moments: u64) {
        let [revisions, of_moments] = [parameters, moments].map(|revision| self.revision.saturating_sub(revision));
        self.counts.revisions_lost += revisions;
        self.counts.moments_lost += of_moments;
        if revisions > 0 {
            self.on_outdated(layers);
        }
        if revisions > 0 || of_moments > 0 {
            self.notice(TeamNotice::StepsLost { layers: (layers.first, layers.end), revisions, of_moments });
        }
    }

    fn assign(&mut self, helper: PeerId, cut: &Cut, number: usize, keeps_state: bool) {
        let stage = &cut.stages[number];
        let assign = Assign {
            epoch: self.epoch,
            stage: number as u32,
            layers: stage.layers,
            tensors: stage.layers.len() * self.config.tensors_per_layer,
            in_flight: stage.in_flight,
            // No stage runs further ahead than the first one.
            waiting: cut.stages[0].in_flight,
            rows_max: self.config.rows_max,
            width: self.config.width,
            wire: self.config.wire,
            revision: self.revision,
            keeps_state,
            run: self.config.run.clone(),
        };
        if let Some(known) = self.roster.get_mut(helper) {
            known.is_assigned = true;
        }
        self.send(helper, TeamMessage::Assign(Box::new(assign)));
    }

    pub(super) fn on_wants_base(&mut self, helper: PeerId, epoch: u64) {
        let request = self.next_number;
        let is_this = epoch == self.epoch;
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        let stage = loading.cut.of_helpers().find(|(_, member, _)| *member == helper);
        let is_read = loading.reads.values().any(|(of, kind, _)| (*of, *kind) == (helper, StateKind::Base));
        let Some((_, _, stage)) = stage.filter(|_| is_this && loading.awaits.contains(&helper) && !is_read) else {
            return self.counts.stale += 1;
        };
        let layers = stage.layers;
        loading.reads.insert(request, (helper, StateKind::Base, layers));
        self.next_number += 1;
        self.effects.push_back(CaptainEffect::ReadOut { request, layers, kind: StateKind::Base });
    }

    pub(super) fn on_read_out(&mut self, now: Time, request: u64, payload: Option<Payload>) {
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        let Some((helper, kind, layers)) = loading.reads.get(&request).copied() else { return self.counts.stale += 1 };
        let Some(payload) = payload else {
            // The owner has not what it should have: nobody else is to blame.
            return self.pause(now, "a state that should be kept is missing".to_owned());
        };
        if kind == StateKind::Training {
            loading.reads.remove(&request);
        }
        let (epoch, revision, bytes) = (self.epoch, self.revision, payload.len() as u64);
        // Of the base there is one answer, which nothing follows.
        let request = if kind == StateKind::Base { epoch } else { request };
        let header = StateHeader { epoch, request, kind, layers, revision, bytes };
        self.effects.push_back(CaptainEffect::Send { helper, packet: Packet::State(header, payload) });
    }

    /// A helper has taken a part of the state that it begins with: the next one goes out.
    pub(super) fn on_part_taken(&mut self, now: Time, helper: PeerId, epoch: u64, request: u64) {
        let (is_this, number) = (epoch == self.epoch, self.next_number);
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        let given = loading.gives.get_mut(&helper).filter(|(given, _)| is_this && *given == request);
        let Some((given, next)) =
            given.and_then(|given| Some((given.1.next(now)?, given))).map(|(next, given)| (given, next))
        else {
            return self.counts.stale += 1;
        };
        *given = (number, next);
        let (layers, kind) = (next.part, StateKind::Training);
        loading.reads.insert(number, (helper, kind, layers));
        self.next_number += 1;
        self.effects.push_back(CaptainEffect::ReadOut { request: number, layers, kind });
    }

    pub(super) fn on_ready(&mut self, now: Time, helper: PeerId, epoch: u64) {
        let is_this = epoch == self.epoch;
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        if !is_this || !loading.awaits.remove(&helper) {
            return self.counts.stale += 1;
        }
        let stage = loading.cut.of_helpers().find(|(_, member, _)| *member == helper);
        let layers = stage.expect("one that is awaited has a stage").2.layers;
        let since = loading.since;
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Load, now - since);
            known.held = Some(HeldLayers { epoch, layers, revision: self.revision });
        }
        self.end_loading();
    }

    pub(super) fn on_cannot(&mut self, now: Time, helper: PeerId, epoch: u64, reason: String) {
        let is_this = epoch == self.epoch;
        let is_awaited = matches!(&self.phase, Phase::Loading(loading) if loading.awaits.contains(&helper));
        // One that held a stage may give it up at any time, where it could not take up what was written.
        let is_member = self.cut.as_ref().is_some_and(|cut| cut.has(helper));
        if !is_this || !(is_awaited || is_member) {
            return self.counts.stale += 1;
        }
        self.notice(TeamNotice::HelperCannot { helper, reason });
        if let Some(known) = self.roster.get_mut(helper) {
            // What was said to be kept is gone: it may have the same layers again, with their state.
            known.cannot = known.held.is_none();
            known.held = None;
        }
        match &self.phase {
            Phase::Ready | Phase::Computing(_) | Phase::Copying(_) | Phase::Writing(_) => {
                self.lose(now, helper, crate::team::notice::DropReason::Failed);
            }
            Phase::Waiting(_) | Phase::Saving(_) | Phase::Loading(_) | Phase::Ended => {
                self.wait_for(now, helper);
                if let Phase::Waiting(waiting) = &mut self.phase {
                    waiting.until = now;
                }
            }
        }
    }

    pub(super) fn on_loaded(&mut self, now: Time, epoch: u64, result: Result<(), String>) {
        let is_this = epoch == self.epoch;
        let Phase::Loading(loading) = &mut self.phase else { return self.counts.stale += 1 };
        if !is_this || !loading.awaits_own {
            return self.counts.stale += 1;
        }
        match result {
            Ok(()) => {
                loading.awaits_own = false;
                self.end_loading();
            }
            Err(reason) => self.pause(now, reason),
        }
    }

    /// The captain's own part fails: tried again now and then.
    fn pause(&mut self, now: Time, reason: String) {
        let (until, missing_bytes) = (now + WAITING_NOTICE_PERIOD, self.config.model.layer.bytes.max(1));
        self.phase = Phase::Waiting(Waiting::lacking(until, missing_bytes));
        self.notice(TeamNotice::LoadFailed { reason });
    }

    fn end_loading(&mut self) {
        let Phase::Loading(loading) = &self.phase else { return };
        if loading.awaits.is_empty() && !loading.awaits_own {
            let cut = loading.cut.clone();
            (self.cut, self.steps_of_cut) = (Some(cut.clone()), 0);
            self.counts.cuts += 1;
            self.phase = Phase::Ready;
            let alone = cut::alone(&self.config.model, &self.own_place(), self.config.lanes.microbatches());
            let alone = alone.map(|alone| alone.tokens_per_second);
            self.notice(TeamNotice::CutTaken { epoch: self.epoch, cut, alone });
        }
    }
}
