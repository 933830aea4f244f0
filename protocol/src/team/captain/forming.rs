//! How a team is cut: helpers are gathered, states of layers that move are kept, stages are loaded. And cut anew where a helper is
//! lost, comes or leaves.

use std::collections::{BTreeMap, BTreeSet};

use super::roster::Task;
use super::states::InParts;
use super::{Captain, CaptainEffect, Packet, Phase};
use crate::Payload;
use crate::peer::PeerId;
use crate::team::bounds::{GAIN_MIN, HELPERS_MAX, REPAYS_WITHIN, WAITING_NOTICE_PERIOD};
use crate::team::cut::{self, Cut, Place};
use crate::team::frame::{StateHeader, StateKind};
use crate::team::layers::LayerRange;
use crate::team::message::{Assign, HeldLayers, TeamMessage};
use crate::team::notice::TeamNotice;
use crate::time::Time;

/// No cut, as yet.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Until when it waits for those who are expected; then it cuts with those who are there.
    pub(super) until: Time,
    /// Where no cut fits: bytes that are missing, at least.
    pub(super) missing_bytes: u64,
    /// Who was there before the last loss; nobody where the first cut is sought.
    expected: BTreeSet<PeerId>,
}

impl Waiting {
    /// Before the first cut.
    pub(super) fn gathering(until: Time) -> Waiting {
        Waiting { until, missing_bytes: 0, expected: BTreeSet::new() }
    }
}

/// States of layers that are about to move are copied to the owner.
#[derive(Debug)]
pub(super) struct Saving {
    /// What comes then; none where somebody leaves whose layers fit nowhere else.
    cut: Option<Cut>,
    /// Of whom, by request.
    copies: BTreeMap<u64, (PeerId, HeldLayers, InParts)>,
}

impl Saving {
    pub(super) fn awaited(&self) -> Vec<(PeerId, Task, Time)> {
        self.copies.values().map(|(helper, _, parts)| (*helper, Task::Copy, parts.since)).collect()
    }

    /// Whether a helper gives its state, or has a stage of the cut that comes.
    pub(super) fn concerns(&self, helper: PeerId) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.has(helper)) || self.copies.values().any(|(giver, ..)| *giver == helper)
    }
}

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
    /// A helper that the cut has is gone: it may return within the grace, and then goes on where it was.
    pub(super) fn wait_for(&mut self, now: Time, helper: PeerId) {
        let mut expected: BTreeSet<PeerId> = match &self.phase {
            Phase::Waiting(waiting) => waiting.expected.clone(),
            Phase::Saving(saving) => saving.cut.iter().flat_map(Cut::of_helpers).map(|(_, helper, _)| helper).collect(),
            Phase::Loading(loading) => loading.cut.of_helpers().map(|(_, helper, _)| helper).collect(),
            Phase::Ended => return,
            _ => self.cut.iter().flat_map(Cut::of_helpers).map(|(_, helper, _)| helper).collect(),
        };
        expected.insert(helper);
        self.phase = Phase::Waiting(Waiting { until: now + self.config.timeouts.grace, missing_bytes: 0, expected });
    }

    /// The captain's own machine, as fast as it was measured.
    fn own_place(&self) -> Place {
        let operations_per_second = self.speed.reached().unwrap_or(self.config.captain.operations_per_second);
        Place { operations_per_second, ..self.config.captain }
    }

    /// Of reliable helpers, and of all where those have no room.
    fn best_cut(&self) -> Result<Cut, u64> {
        self.best_cut_of(self.roster.reliable()).or_else(|_| self.best_cut_of(self.roster.candidates()))
    }

    fn best_cut_of(&self, mut candidates: Vec<(PeerId, Place)>) -> Result<Cut, u64> {
        // The fastest, where there are more than can be tried.
        candidates.sort_by(|one, other| other.1.operations_per_second.total_cmp(&one.1.operations_per_second));
        candidates.truncate(HELPERS_MAX);
        cut::best(&self.config.model, &self.own_place(), &candidates, self.config.lanes.microbatches())
    }

    /// Whether all who are expected are there, or the time for them is over; where no cut has fitted, whether something is new.
    fn is_gathered(&self, now: Time, waiting: &Waiting) -> bool {
        if now >= waiting.until || waiting.missing_bytes > 0 {
            return now >= waiting.until || self.reconsiders;
        }
        if waiting.expected.is_empty() {
            return self.roster.candidates().len() >= self.config.helpers_wanted;
        }
        waiting.expected.iter().all(|helper| self.roster.is_candidate(*helper))
    }

    /// Cuts the model, where it fits.
    pub(super) fn seek_cut(&mut self, now: Time) {
        let Phase::Waiting(waiting) = &self.phase else { return };
        // What layers begin from has to be known.
        if !self.is_gathered(now, waiting) || !self.checking.is_empty() {
            return;
        }
        let is_late = now >= waiting.until;
        self.reconsiders = false;
        // Those who were there before go on as before.
        let same = self.cut.clone().filter(|cut| {
            let mut members = cut.of_helpers();
            !waiting.expected.is_empty()
                && members.all(|(_, helper, _)| self.roster.is_candidate(helper) && !self.roster.is_avoided(helper))
        });
        match same.map_or_else(|| self.best_cut(), Ok) {
            Ok(cut) => self.take_up(now, cut),
            Err(_) if self.has_leaving() => self.part_with_leaving(now),
            Err(missing_bytes) => {
                if let Phase::Waiting(waiting) = &mut self.phase
                    && (is_late || waiting.missing_bytes != missing_bytes)
                {
                    waiting.missing_bytes = missing_bytes;
                    waiting.until = now + WAITING_NOTICE_PERIOD;
                    self.notice(TeamNotice::Waiting { missing_bytes });
                }
            }
        }
    }

    /// Cuts anew between batches where somebody leaves, or another cut repays what it costs.
    pub(super) fn improve_cut(&mut self, now: Time) {
        let Some(cut) = self.cut.as_ref().filter(|_| std::mem::take(&mut self.reconsiders)) else { return };
        let leaves = cut.of_helpers().any(|(_, helper, _)| !self.roster.is_candidate(helper));
        let better = match self.best_cut() {
            Ok(better) => better,
            Err(_) if leaves && self.has_leaving() => return self.part_with_leaving(now),
            Err(_) => return,
        };
        if leaves || (better.stages != cut.stages && self.repays(cut, &better)) {
            self.take_up(now, better);
        }
    }

    /// Whether a cut gains more within [`REPAYS_WITHIN`] than moving layers takes.
    fn repays(&self, cut: &Cut, better: &Cut) -> bool {
        let places: Option<Vec<Place>> = cut.of_helpers().map(|(_, helper, _)| self.roster.place(helper)).collect();
        let Some(places) = places else { return true };
        let microbatches = self.config.lanes.microbatches();
        let now = cut::tokens_per_second(&self.config.model, &self.own_place(), cut, &places, microbatches);
        let gain = better.tokens_per_second / now - 1.0;
        let seconds = better.of_helpers().map(|(_, helper, stage)| {
            let keeps =
                self.roster.get(helper).and_then(|known| known.held).is_some_and(|held| held.layers == stage.layers);
            let bytes = if keeps { 0 } else { u64::from(stage.layers.len()) * self.config.model.layer.moved_bytes };
            let rate = self.roster.place(helper).map_or(f64::INFINITY, |place| place.link.down);
            // Out of one machine and into another.
            2.0 * bytes as f64 / rate.min(self.config.captain.link.up)
        });
        let seconds: f64 = seconds.sum();
        gain > GAIN_MIN && gain * REPAYS_WITHIN.as_secs_f64() > seconds
    }

    /// A cut is decided. What only a helper has of layers that move is copied first.
    fn take_up(&mut self, now: Time, cut: Cut) {
        let stays = |helper: PeerId, held: &HeldLayers| {
            cut.of_helpers().any(|(_, member, stage)| member == helper && stage.layers == held.layers)
        };
        let mut moving = self.roster.held_layers();
        moving.retain(|(helper, held)| !stays(*helper, held));
        self.save(now, moving, Some(cut));
    }

    /// Whether a helper that wants to leave has not been let go.
    fn has_leaving(&self) -> bool {
        !self.roster.leaving().is_empty()
    }

    /// The layers of who leaves fit nowhere else: what they are is copied, then their helper is let go, and the team waits.
    fn part_with_leaving(&mut self, now: Time) {
        let leaving = self.roster.leaving();
        let mut moving = self.roster.held_layers();
        moving.retain(|(helper, _)| leaving.contains(helper));
        leaving.into_iter().for_each(|helper| self.notice(TeamNotice::HelperLeaves { helper }));
        self.save(now, moving, None);
    }

    fn save(&mut self, now: Time, moving: Vec<(PeerId, HeldLayers)>, cut: Option<Cut>) {
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
        self.phase = Phase::Saving(Saving { cut, copies });
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
        let next = parts.next(now);
        saving.copies.extend(next.map(|next| (header.request, (helper, held, next))));
        if let Some(known) = self.roster.get_mut(helper) {
            known.record(Task::Copy, now - parts.since);
        }
        if let Some(next) = next {
            self.save_part(helper, header.request, &held, &next);
        }
        self.keep(helper, header.layers, header, payload.clone());
        true
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

    /// Orders all stages of a cut.
    fn load(&mut self, now: Time, cut: Cut) {
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
        self.phase = Phase::Waiting(Waiting { until, missing_bytes, expected: BTreeSet::new() });
        self.notice(TeamNotice::LoadFailed { reason });
    }

    fn end_loading(&mut self) {
        let Phase::Loading(loading) = &self.phase else { return };
        if loading.awaits.is_empty() && !loading.awaits_own {
            let cut = loading.cut.clone();
            self.cut = Some(cut.clone());
            self.counts.cuts += 1;
            self.phase = Phase::Ready;
            let alone = cut::alone(&self.config.model, &self.own_place(), self.config.lanes.microbatches());
            let alone = alone.map(|alone| alone.tokens_per_second);
            self.notice(TeamNotice::CutTaken { epoch: self.epoch, cut, alone });
        }
    }
}
